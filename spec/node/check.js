/**
 * Runs the conformance vectors: `node check.js [family ...]`, a family being a file of ../vectors.
 *
 * Prints how many vectors of each family passed and names every failure. Exit status: 0 if all passed, 1 if one
 * failed, 2 if a family does not exist.
 */

import { families, load } from "./files.js";
import { checkVector } from "./vectors.js";

/**
 * @param {string} family
 * @returns {boolean} whether all of it passed
 */
function checkFamily(family) {
  const vectors = load(family);
  const failures = vectors.flatMap((/** @type {any} */ vector) =>
    checkVector(vector).map((failure) => `  ${vector.id} (${vector.about}): ${failure}`),
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
