// The AI SDK with its provider of OpenAI's, which asks responses unless `chat` is said.
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, embed, generateText } from "ai";
import { KEY, SCRIPTED, TINY, equal, feature, raises, run } from "./features.mjs";
import { tell } from "./ai_sdk.mjs";

// docs: connect
const sealring = createOpenAI({ baseURL: `${TINY}/v1`, apiKey: KEY });
const model = sealring("tiny"); // or sealring.chat("tiny")
// docs: end

const at = (name, apiKey = KEY) =>
  createOpenAI({ baseURL: `${name === "scripted" ? SCRIPTED : TINY}/v1`, apiKey });

tell("chat", (name, key) => at(name, key).chat(name), ["reasoning"]); // it knows none in chats
tell("responses", (name, key) => at(name, key)(name), ["stop", "seed"], { // nor has OpenAI's
  openai: { forceReasoning: true, reasoningSummary: "auto", store: false },
});

feature("responses", "go on", async () => {
  // Unless `store` is false it sends what was said before as references to the server's items.
  const common = { model: at("scripted")("scripted"), maxRetries: 0 };
  const told = await generateText({ ...common, prompt: "fruit" });
  const messages = [
    { role: "user", content: "fruit" }, ...told.response.messages,
    { role: "user", content: "fruit" },
  ];
  equal((await generateText({ ...common, messages })).text, "apple banana cherry");
});

feature("chat", "embeddings", () =>
  raises(APICallError, () =>
    embed({ model: sealring.embedding("tiny"), value: "x", maxRetries: 0 }), "embedding"));

await run();
