// The AI SDK with its provider for what is compatible with OpenAI's chat.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { KEY, SCRIPTED, TINY, run } from "./features.mjs";
import { tell } from "./ai_sdk.mjs";

// docs: connect
const sealring = createOpenAICompatible({
  name: "sealring", baseURL: `${TINY}/v1`, apiKey: KEY,
  includeUsage: true, supportsStructuredOutputs: true,
});
const model = sealring("tiny");
// docs: end

tell("chat", (name, apiKey = KEY) =>
  name === "tiny" && apiKey === KEY ? model : createOpenAICompatible({
    name: "sealring", baseURL: `${name === "scripted" ? SCRIPTED : TINY}/v1`, apiKey,
    includeUsage: true, supportsStructuredOutputs: true,
  })(name));

await run();
