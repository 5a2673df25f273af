// The official client of Anthropic for Node: messages.
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";
import {
  IMAGE, KEY, SCHEMA, SCRIPTED, STORY, TINY, WEATHER, ends, equal, feature, holds, isCity, raises,
  run, underWay,
} from "./features.mjs";

// docs: connect
const client = new Anthropic({ baseURL: TINY, apiKey: KEY, maxRetries: 0 });
const model = "tiny";
// docs: end
const scripted = new Anthropic({ baseURL: SCRIPTED, apiKey: KEY, maxRetries: 0 });
const stranger = new Anthropic({ baseURL: TINY, apiKey: "wrong", maxRetries: 0 });

const tools = [{ name: "get_weather", description: "The weather.", input_schema: WEATHER }];
const City = z.object({ city: z.enum(["Paris", "Rome"]), warm: z.boolean() });
const says = (content) => [{ role: "user", content }];
const ask = (text = STORY, more = {}) =>
  client.messages.create({ model, messages: says(text), max_tokens: 16, ...more });
const play = (text, more = {}) =>
  scripted.messages.create({ model: "scripted", messages: says(text), max_tokens: 64, ...more });

feature("messages", "models", async () => {
  const found = [];
  for await (const each of client.models.list()) found.push(each.id);
  equal(found, ["tiny"]);
});

feature("messages", "answer", async () => {
  const told = await ask();
  equal([told.usage.output_tokens, told.stop_reason], [16, "max_tokens"]);
  equal((await play("fruit")).content[0].text, "apple banana cherry");
});

feature("messages", "stream", async () => {
  const stream = scripted.messages.stream({
    model: "scripted", messages: says("fruit"), max_tokens: 64,
  });
  let text = "";
  stream.on("text", (part) => { text += part; });
  equal(await stream.finalText(), "apple banana cherry");
  equal(text, "apple banana cherry");
});

feature("messages", "usage", async () => {
  const stream = client.messages.stream({ model, messages: says(STORY), max_tokens: 8 });
  equal((await stream.finalMessage()).usage.output_tokens, 8);
});

feature("messages", "stop", async () => {
  const told = await play("fruit", { stop_sequences: ["banana"] });
  equal([told.content[0].text, told.stop_sequence], ["apple ", "banana"]);
});

feature("messages", "forced tool", async () => {
  const options = { tools, tool_choice: { type: "any" }, max_tokens: 600 };
  const [call] = (await ask("Weather?", options)).content;
  holds(["Paris", "Rome"].includes(call.input.city), call);
});

feature("messages", "tool", async () => {
  const told = await play("weather", { tools });
  equal([told.content[0].input, told.stop_reason], [{ city: "Paris" }, "tool_use"]);
});

feature("messages", "tool result", async () => {
  const told = await play("weather", { tools });
  const given = { type: "tool_result", tool_use_id: told.content[0].id, content: "sunny" };
  const messages = [
    ...says("weather"), { role: "assistant", content: told.content }, ...says([given]),
  ];
  equal((await play("", { tools, messages })).content[0].text, "It is sunny in Paris.");
});

feature("messages", "tool stream", async () => {
  const stream = scripted.messages.stream({
    model: "scripted", messages: says("weather"), max_tokens: 64, tools,
  });
  equal((await stream.finalMessage()).content[0].input, { city: "Paris" });
});

feature("messages", "schema", async () => {
  const output_config = { format: { type: "json_schema", schema: SCHEMA } };
  const told = await ask("A city?", { output_config, max_tokens: 600 });
  isCity(JSON.parse(told.content[0].text));
});

feature("messages", "typed", async () => {
  const told = await client.messages.parse({
    model, messages: says("A city?"), max_tokens: 600,
    output_config: { format: zodOutputFormat(City) },
  });
  isCity(told.parsed_output);
});

feature("messages", "reasoning", async () => {
  const thinking = { type: "enabled", budget_tokens: 1024 };
  const [thought, message] = (await play("think", { thinking, max_tokens: 2048 })).content;
  equal([thought.thinking.trim(), message.text], ["I ponder.", "The answer."]);
});

feature("messages", "count", async () => {
  const { usage } = await ask();
  const told = await client.messages.countTokens({ model, messages: says(STORY) });
  equal(told.input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
});

feature("messages", "wrong model", () =>
  raises(Anthropic.NotFoundError, () => ask("x", { model: "other" }), "tiny"));
feature("messages", "bad field", () =>
  raises(Anthropic.BadRequestError, () => ask("x", { temperature: 9 }), "temperature"));
feature("messages", "wrong key", () =>
  raises(Anthropic.AuthenticationError, () =>
    stranger.messages.create({ model, messages: says("x"), max_tokens: 1 })));
feature("messages", "image", () => {
  const source = { type: "base64", media_type: "image/png", data: IMAGE };
  return raises(Anthropic.BadRequestError, () => ask([{ type: "image", source }]), "image");
});

feature("messages", "cancel", async () => {
  for await (const _ of await play("endless", { stream: true, max_tokens: 1 << 19 })) {
    equal(await underWay(), 1);
    break;
  }
  await ends();
});

await run();
