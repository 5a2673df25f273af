/**
 * Says which faulty vectors are still refused when the check that refuses them is left out: `node faults.js`.
 *
 * Such a vector has two faults. Where their classes differ, an implementation may meet the other one first; where they
 * do not, it passes without the check. A line of JSON for each: `id`, and `first` and `second` as [class, reason].
 * What must be so is in ../vectors/two_faults.txt.
 */

import { families, load } from "./files.js";
import { Failure, without } from "./sealring/failure.js";
import { attempts } from "./vectors.js";

/** What nobody can go on after: there is no point, no plaintext, no byte to read. */
const UNAVOIDABLE = new Set([
  "a point of small order",
  "a point that is not on the curve",
  "a signature that does not verify",
  "cut short",
  "it does not open",
  "no such invitation",
  "no suite in common",
  "not UTF-8",
  "nothing opens after a failure",
  "the stream ended without CLOSE",
]);

/**
 * @param {any} vector
 * @returns {unknown} what is thrown by the first attempt at it, which takes it whole; null if nothing is
 */
function refusal(vector) {
  try {
    attempts(vector)[0]({ output: undefined, released: [] });
    return null;
  } catch (error) {
    return error;
  }
}

/** What the head asks of itself is no input that somebody sends. */
const chosen = families.filter((family) => family !== "splits");
for (const vector of chosen.flatMap(load).filter(({ result }) => result !== "valid")) {
  const first = refusal(vector);
  if (!(first instanceof Failure) || UNAVOIDABLE.has(first.message)) continue;
  const second = without([first.message], () => refusal(vector));
  if (!(second instanceof Failure)) continue; // taken, or stuck: either way it is noticed
  const [a, b] = [first, second].map(({ name, message }) => [name, message]);
  console.log(JSON.stringify({ id: vector.id, first: a, second: b }));
}
