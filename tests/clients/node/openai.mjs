// The official client of OpenAI for Node: chat, completions, responses.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import {
  IMAGE, KEY, SCHEMA, SCRIPTED, STORY, TINY, WEATHER, ends, equal, feature, holds, isCity, raises,
  run, underWay,
} from "./features.mjs";

// docs: connect
const client = new OpenAI({ baseURL: `${TINY}/v1`, apiKey: KEY, maxRetries: 0 });
const model = "tiny";
// docs: end
const scripted = new OpenAI({ baseURL: `${SCRIPTED}/v1`, apiKey: KEY, maxRetries: 0 });
const stranger = new OpenAI({ baseURL: `${TINY}/v1`, apiKey: "wrong", maxRetries: 0 });

const FUNCTION = { name: "get_weather", description: "The weather.", parameters: WEATHER };
const tools = [{ type: "function", function: FUNCTION }];
const City = z.object({ city: z.enum(["Paris", "Rome"]), warm: z.boolean() });
const says = (content) => [{ role: "user", content }];
const chat = (text = STORY, more = {}) =>
  client.chat.completions.create({
    model, messages: says(text), temperature: 0, max_tokens: 16, ...more,
  });
const play = (text, more = {}) =>
  scripted.chat.completions.create({ model: "scripted", messages: says(text), ...more });

feature("chat", "models", async () => {
  const found = [];
  for await (const each of client.models.list()) found.push(each.id);
  equal(found, ["tiny"]);
  equal((await client.models.retrieve("tiny")).id, "tiny");
});

feature("chat", "answer", async () => {
  equal((await chat()).usage.completion_tokens, 16);
  equal((await play("fruit")).choices[0].message.content, "apple banana cherry");
});

feature("chat", "stream", async () => {
  let text = "";
  for await (const part of await play("fruit", { stream: true })) {
    text += part.choices[0].delta.content ?? "";
  }
  equal(text, "apple banana cherry");
});

feature("chat", "usage", async () => {
  let last;
  const options = { stream: true, stream_options: { include_usage: true } };
  for await (const part of await chat(STORY, options)) last = part;
  equal([last.choices, last.usage.completion_tokens], [[], 16]);
});

feature("chat", "stop", async () => {
  equal((await play("fruit", { stop: ["banana"] })).choices[0].message.content, "apple ");
});

feature("chat", "n", async () => {
  equal((await chat(STORY, { n: 3, temperature: 1 })).choices.map((each) => each.index), [0, 1, 2]);
});

feature("chat", "seed", async () => {
  const one = await chat(STORY, { seed: 1, temperature: 1 });
  const two = await chat(STORY, { seed: 1, temperature: 1 });
  equal(one.choices[0].message.content, two.choices[0].message.content);
});

feature("chat", "logprobs", async () => {
  const [choice] = (await chat(STORY, { logprobs: true, top_logprobs: 2 })).choices;
  equal(choice.logprobs.content.map((each) => each.token).join(""), choice.message.content);
});

feature("chat", "forced tool", async () => {
  const options = { tools, tool_choice: "required", max_tokens: 600 };
  const [call] = (await chat("Weather?", options)).choices[0].message.tool_calls;
  holds(["Paris", "Rome"].includes(JSON.parse(call.function.arguments).city), call);
});

feature("chat", "tool", async () => {
  const [choice] = (await play("weather", { tools })).choices;
  equal(choice.finish_reason, "tool_calls");
  equal(JSON.parse(choice.message.tool_calls[0].function.arguments), { city: "Paris" });
});

feature("chat", "tool result", async () => {
  const runner = scripted.chat.completions.runTools({
    model: "scripted",
    messages: says("weather"),
    tools: [{
      type: "function",
      function: { ...FUNCTION, parse: JSON.parse, function: ({ city }) => city === "Paris" && "sunny" },
    }],
  });
  equal(await runner.finalContent(), "It is sunny in Paris.");
});

feature("chat", "tool stream", async () => {
  const stream = scripted.chat.completions.stream({
    model: "scripted", messages: says("weather"), tools,
  });
  const [call] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
  equal(JSON.parse(call.function.arguments), { city: "Paris" });
});

feature("chat", "schema", async () => {
  const form = { type: "json_schema", json_schema: { name: "c", schema: SCHEMA, strict: true } };
  const told = await chat("A city?", { response_format: form, max_tokens: 600 });
  isCity(JSON.parse(told.choices[0].message.content));
});

feature("chat", "typed", async () => {
  const told = await client.chat.completions.parse({
    model, messages: says("A city?"), max_tokens: 600,
    response_format: zodResponseFormat(City, "city"),
  });
  isCity(told.choices[0].message.parsed);
});

feature("chat", "reasoning", async () => {
  const { message } = (await play("think")).choices[0];
  equal([message.reasoning_content.trim(), message.content], ["I ponder.", "The answer."]);
});

feature("chat", "wrong model", () =>
  raises(OpenAI.NotFoundError, () => chat("x", { model: "other" }), "tiny"));
feature("chat", "bad field", async () => {
  const error = await raises(OpenAI.BadRequestError, () => chat("x", { temperature: 9 }));
  equal(error.param, "temperature");
});
feature("chat", "wrong key", () =>
  raises(OpenAI.AuthenticationError, () => stranger.models.list(), "key"));
feature("chat", "image", () => {
  const part = { type: "image_url", image_url: { url: `data:image/png;base64,${IMAGE}` } };
  return raises(OpenAI.BadRequestError, () => chat([part]), "image");
});
feature("chat", "embeddings", () =>
  raises(OpenAI.APIError, () => client.embeddings.create({ model, input: "x" }), "embedding"));

feature("chat", "cancel", async () => {
  for await (const _ of await play("endless", { stream: true })) {
    equal(await underWay(), 1);
    break;
  }
  await ends();
});

feature("completions", "answer", async () => {
  const asked = { model, prompt: "Once upon", max_tokens: 8, temperature: 0 };
  let text = "";
  for await (const part of await client.completions.create({ ...asked, stream: true })) {
    text += part.choices[0].text;
  }
  equal((await client.completions.create(asked)).choices[0].text, text);
});

feature("completions", "echo", async () => {
  const asked = { model, prompt: "Once upon", max_tokens: 4, echo: true, logprobs: 1 };
  const [{ text, logprobs }] = (await client.completions.create(asked)).choices;
  holds(text.startsWith("Once upon"), text);
  equal(logprobs.tokens.join(""), text);
});

const responseTools = [{ type: "function", ...FUNCTION, strict: true }];
const respond = (input, more = {}) =>
  scripted.responses.create({ model: "scripted", input, ...more });

feature("responses", "answer", async () => {
  equal((await respond("fruit")).output_text, "apple banana cherry");
});

feature("responses", "stream", async () => {
  const stream = scripted.responses.stream({ model: "scripted", input: "fruit" });
  let text = "";
  for await (const each of stream) {
    if (each.type === "response.output_text.delta") text += each.delta;
  }
  equal([text, (await stream.finalResponse()).output_text], Array(2).fill("apple banana cherry"));
});

feature("responses", "forced tool", async () => {
  const [call] = (await client.responses.create({
    model, input: "Weather?", tools: responseTools, tool_choice: "required", max_output_tokens: 600,
  })).output;
  holds(["Paris", "Rome"].includes(JSON.parse(call.arguments).city), call);
});

feature("responses", "tool", async () => {
  const [call] = (await respond("weather", { tools: responseTools })).output;
  equal([call.name, JSON.parse(call.arguments)], ["get_weather", { city: "Paris" }]);
});

const given = (call) => ({ type: "function_call_output", call_id: call.call_id, output: "sunny" });

feature("responses", "tool result", async () => {
  const { output } = await respond("weather", { tools: responseTools });
  const items = [...says("weather"), ...output, given(output[0])];
  equal((await respond(items, { tools: responseTools })).output_text, "It is sunny in Paris.");
});

feature("responses", "go on", async () => {
  const told = await respond("weather", { tools: responseTools });
  const more = { tools: responseTools, previous_response_id: told.id };
  equal((await respond([given(told.output[0])], more)).output_text, "It is sunny in Paris.");
});

feature("responses", "tool stream", async () => {
  const stream = scripted.responses.stream({
    model: "scripted", input: "weather", tools: responseTools,
  });
  const [call] = (await stream.finalResponse()).output;
  equal(JSON.parse(call.arguments), { city: "Paris" });
});

feature("responses", "schema", async () => {
  const format = { type: "json_schema", name: "c", schema: SCHEMA, strict: true };
  const asked = { model, input: "A city?", text: { format }, max_output_tokens: 600 };
  isCity(JSON.parse((await client.responses.create(asked)).output_text));
});

feature("responses", "typed", async () => {
  const told = await client.responses.parse({
    model, input: "A city?", text: { format: zodTextFormat(City, "city") }, max_output_tokens: 600,
  });
  isCity(told.output_parsed);
});

feature("responses", "reasoning", async () => {
  const [thought, message] = (await respond("think")).output;
  equal([thought.content[0].text.trim(), message.content[0].text], ["I ponder.", "The answer."]);
});

feature("responses", "wrong model", () =>
  raises(OpenAI.NotFoundError, () => respond("x", { model: "other" }), "scripted"));
feature("responses", "bad field", () =>
  raises(OpenAI.BadRequestError, () => respond("x", { temperature: 9 }), "temperature"));
feature("responses", "wrong key", () =>
  raises(OpenAI.AuthenticationError, () => stranger.responses.create({ model, input: "x" })));
feature("responses", "image", () => {
  const part = { type: "input_image", image_url: `data:image/png;base64,${IMAGE}` };
  return raises(OpenAI.BadRequestError, () => respond(says([part])), "image");
});

feature("responses", "cancel", async () => {
  for await (const _ of await respond("endless", { stream: true })) {
    equal(await underWay(), 1);
    break;
  }
  await ends();
});

await run();
