// What the AI SDK does with any of its providers: `tell` names the features of one.
import { APICallError, generateObject, generateText, stepCountIs, streamObject, streamText, tool }
  from "ai";
import { z } from "zod";
import { PIXEL, STORY, ends, equal, feature, holds, isCity, raises, underWay } from "./features.mjs";

const City = z.object({ city: z.enum(["Paris", "Rome"]), warm: z.boolean() });

const weather = (execute) => ({
  get_weather: tool({
    description: "The weather.",
    inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }),
    ...(execute ? { execute: async ({ city }) => (city === "Paris" ? "sunny" : "no") } : {}),
  }),
});

/**
 * The features over *api*. *make* gives a model for the name of a ring (`scripted`, `tiny`) or of none, and a key; *without* has the features that the provider has not. *forReasoning* are
 * the provider's options that have it show what the model thinks.
 */
export function tell(api, make, without = [], forReasoning = {}) {
  const tiny = make("tiny");
  const scripted = make("scripted");
  const has = (name, attempt) => without.includes(name) || feature(api, name, attempt);
  const common = { maxRetries: 0, maxOutputTokens: 600 };
  const play = (prompt, more = {}) =>
    generateText({ ...common, model: scripted, prompt, ...more });

  has("answer", async () => {
    const short = { ...common, maxOutputTokens: 16, temperature: 0 };
    const told = await generateText({ ...short, model: tiny, prompt: STORY });
    equal([told.usage.outputTokens, told.finishReason], [16, "length"]);
    equal((await play("fruit")).text, "apple banana cherry");
  });

  has("stream", async () => {
    const told = streamText({ ...common, model: scripted, prompt: "fruit" });
    let text = "";
    for await (const part of told.textStream) text += part;
    equal(text, "apple banana cherry");
  });

  has("usage", async () => {
    const told = streamText({ ...common, model: tiny, prompt: STORY, maxOutputTokens: 8 });
    await told.consumeStream();
    equal((await told.usage).outputTokens, 8);
  });

  has("stop", async () => equal((await play("fruit", { stopSequences: ["banana"] })).text, "apple "));

  has("seed", async () => {
    const asked = { ...common, model: tiny, prompt: STORY, seed: 1, temperature: 1 };
    equal((await generateText(asked)).text, (await generateText(asked)).text);
  });

  has("forced tool", async () => {
    for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }]) {
      const asked = { ...common, model: tiny, prompt: "Weather?", tools: weather(false), toolChoice };
      const [call] = (await generateText(asked)).toolCalls;
      holds(["Paris", "Rome"].includes(call.input.city), call);
    }
  });

  has("tool", async () => {
    const told = await play("weather", { tools: weather(false) });
    equal([told.toolCalls[0].input, told.finishReason], [{ city: "Paris" }, "tool-calls"]);
  });

  has("tool result", async () => {
    const told = await play("weather", { tools: weather(true), stopWhen: stepCountIs(3) });
    equal([told.text, told.steps.length], ["It is sunny in Paris.", 2]);
  });

  has("tool stream", async () => {
    const told = streamText({
      ...common, model: scripted, prompt: "weather", tools: weather(true), stopWhen: stepCountIs(3),
    });
    equal(await told.text, "It is sunny in Paris.");
  });

  has("schema", async () => {
    const told = streamObject({ ...common, model: tiny, schema: City, prompt: "A city?" });
    for await (const _ of told.partialObjectStream);
    isCity(await told.object);
  });

  has("typed", async () => {
    const told = await generateObject({ ...common, model: tiny, schema: City, prompt: "A city?" });
    isCity(told.object);
  });

  has("reasoning", async () => {
    const told = await play("think", { providerOptions: forReasoning });
    equal([told.reasoningText.trim(), told.text], ["I ponder.", "The answer."]);
    const streamed = streamText({
      ...common, model: scripted, prompt: "think", providerOptions: forReasoning,
    });
    equal([(await streamed.reasoningText).trim(), await streamed.text], ["I ponder.", "The answer."]);
    const messages = [
      { role: "user", content: "think" }, ...told.response.messages,
      { role: "user", content: "fruit" },
    ];
    const after = await generateText({
      ...common, model: scripted, messages, providerOptions: forReasoning,
    });
    equal(after.text, "apple banana cherry");
  });

  const refused = async (status, options, ...words) => {
    const asked = { ...common, model: tiny, prompt: "x", ...options };
    const error = await raises(APICallError, () => generateText(asked), ...words);
    equal(error.statusCode, status);
  };
  has("wrong model", () => refused(404, { model: make("other") }, "other"));
  has("bad field", () => refused(400, { topP: 9 }, "top_p"));
  has("wrong key", () => refused(401, { model: make("tiny", "wrong") }, "key"));
  has("image", () => {
    const content = [{ type: "text", text: "?" }, { type: "image", image: PIXEL, mediaType: "image/png" }];
    return refused(400, { prompt: undefined, messages: [{ role: "user", content }] }, "image");
  });

  has("cancel", async () => {
    const stop = new AbortController();
    const told = streamText({
      ...common, model: scripted, prompt: "endless", abortSignal: stop.signal,
      maxOutputTokens: 1 << 19, onError: () => {},
    });
    for await (const _ of told.textStream) {
      equal(await underWay(), 1);
      break;
    }
    stop.abort();
    await ends();
  });
}
