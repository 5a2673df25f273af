// What the scripts of Node's clients share. A script names each thing that it tries with `feature`,
// and ends with `run`, which prints one line of JSON for each: API, feature, and why it failed.
import assert from "node:assert/strict";
import { Buffer } from "node:buffer";

export const TINY = process.env.RING_TINY;
export const SCRIPTED = process.env.RING_SCRIPTED;
export const KEY = process.env.RING_KEY;
export const STORY = "Tell me a story about a fox named Pip.";
export const IMAGE =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=";
export const PIXEL = Buffer.from(IMAGE, "base64");

export const WEATHER = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
export const SCHEMA = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Rome"] }, warm: { type: "boolean" } },
  required: ["city", "warm"],
  additionalProperties: false,
};

const PATIENCE = 60_000;
const features = [];

export function feature(api, name, attempt) {
  features.push([api, name, attempt]);
}

export async function run() {
  for (const [api, name, attempt] of features) {
    if (process.argv.length > 2 && !process.argv.slice(2).includes(name)) continue;
    let why = "";
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error("no end after 60 s")), PATIENCE);
    });
    try {
      await Promise.race([attempt(), late]);
    } catch (error) {
      if (process.env.RING_VERBOSE) console.error(error);
      const at = /([\w-]+\.m?js:\d+)/.exec(error.stack?.split("\n    at ").slice(1).join(" ") ?? "");
      why = `${error.constructor.name}: ${error.message} (at ${at?.[1]})`;
      why = why.replace(/\s+/g, " ").slice(0, 700);
    }
    clearTimeout(timer);
    console.log(JSON.stringify({ api, feature: name, why }));
  }
  process.exit(0);
}

export const equal = assert.deepEqual;
export const holds = (true_, what) => assert.ok(true_, `not so: ${JSON.stringify(what)}`);

/** The error of *attempt*, which is of *kind* and has the *words*. */
export async function raises(kind, attempt, ...words) {
  let got;
  try {
    got = await attempt();
  } catch (error) {
    if (!(error instanceof kind)) throw error;
    const text = `${error.message} ${error.responseBody ?? ""}`.toLowerCase();
    for (const word of words) holds(text.includes(word.toLowerCase()), [word, text]);
    return error;
  }
  throw new Error(`no error, but ${JSON.stringify(got)}`);
}

export function isCity(value) {
  equal(Object.keys(value).sort(), ["city", "warm"]);
  holds(["Paris", "Rome"].includes(value.city) && typeof value.warm === "boolean", value);
}

/** How many requests the scripted ring works on. */
export async function underWay() {
  const answer = await fetch(`${SCRIPTED}/v1/requests`, {
    headers: { authorization: `Bearer ${KEY}` },
  });
  const told = await answer.json();
  return told.data.filter((each) =>
    ["parse", "queued", "prefill", "decode"].includes(each.state)).length;
}

/** The ring notices that nobody listens any more. */
export async function ends() {
  const end = Date.now() + PATIENCE / 2;
  while (await underWay()) holds(Date.now() < end, "the request goes on");
}
