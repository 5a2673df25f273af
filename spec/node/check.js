/**
 * Runs the conformance vectors: `node check.js [family ...]`, a family being a file of ../vectors.
 *
 * Prints how many vectors of each family passed and names every failure. Exit status: 0 if all passed, 1 if one
 * failed, 2 if a family does not exist.
 */

import { readFileSync, readdirSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";

import { checkVector } from "./vectors.js";

const VECTORS = new URL("../vectors/", import.meta.url);

const families = readdirSync(VECTORS)
  .filter((name) => name.endsWith(".json") && name !== "schema.json")
  .map((name) => name.slice(0, -".json".length));

/**
 * A vector with the byte strings that it names by `@name` put in.
 *
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

/**
 * @param {string} family
 * @returns {boolean} whether all of it passed
 */
function checkFamily(family) {
  const { given, vectors } = JSON.parse(readFileSync(new URL(`${family}.json`, VECTORS), "utf8"));
  const failures = vectors.flatMap((/** @type {any} */ vector) =>
    checkVector(resolve(vector, given)).map((failure) => `  ${vector.id} (${vector.about}): ${failure}`),
  );
  const failed = new Set(failures.map((/** @type {string} */ line) => line.split(" ", 3)[2])).size;
  console.log(`${family}: ${vectors.length - failed} of ${vectors.length} passed`);
  for (const line of failures) console.log(line);
  return failed === 0;
}

const chosen = process.argv.length > 2 ? process.argv.slice(2) : families;
const unknown = chosen.filter((family) => !families.includes(family));
if (unknown.length > 0) {
  console.error(`no family ${unknown.join(", ")}; there are ${families.join(", ")}`);
  process.exit(2);
}
process.exit(chosen.map(checkFamily).every(Boolean) ? 0 : 1);
