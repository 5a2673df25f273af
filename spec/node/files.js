/** The files of conformance vectors, in ../vectors. */

import { readFileSync, readdirSync } from "node:fs";

const VECTORS = new URL("../vectors/", import.meta.url);

export const families = readdirSync(VECTORS)
  .filter((name) => name.endsWith(".json") && name !== "schema.json")
  .map((name) => name.slice(0, -".json".length));

/**
 * The vectors of a family, with the byte strings that they name by `@name` put in.
 *
 * @param {string} family
 * @returns {any[]}
 */
export function load(family) {
  const { given, vectors } = JSON.parse(readFileSync(new URL(`${family}.json`, VECTORS), "utf8"));
  return resolve(vectors, given);
}

/**
 * @param {any} value
 * @param {Record<string, string>} given
 * @returns {any}
 */
function resolve(value, given) {
  if (typeof value === "string") return value.startsWith("@") ? (given[value.slice(1)] ?? value) : value;
  if (Array.isArray(value)) return value.map((item) => resolve(item, given));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolve(item, given)]));
}
