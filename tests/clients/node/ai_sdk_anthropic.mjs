// The AI SDK with its provider of Anthropic's.
import { createAnthropic } from "@ai-sdk/anthropic";
import { KEY, SCRIPTED, TINY, run } from "./features.mjs";
import { tell } from "./ai_sdk.mjs";

// docs: connect
const sealring = createAnthropic({ baseURL: `${TINY}/v1`, apiKey: KEY });
const model = sealring("tiny");
// docs: end

tell("messages", (name, apiKey = KEY) =>
  name === "tiny" && apiKey === KEY ? model : createAnthropic({
    baseURL: `${name === "scripted" ? SCRIPTED : TINY}/v1`, apiKey,
  })(name), ["seed"]); // Anthropic's API has none

await run();
