/** The layer split that a head should use (section 11.6). */

import { must } from "./failure.js";
import { MAX_WORLD } from "./limits.js";

/** @param {bigint[]} values */
const sum = (values) => values.reduce((total, value) => total + value, 0n);

/**
 * The place of the greatest value, the first of equals.
 *
 * @param {bigint[]} values
 */
const argMax = (values) => values.reduce((best, value, i) => (value > values[best] ? i : best), 0);

const fits = (/** @type {unknown} */ holds, /** @type {string} */ reason) => must(holds, reason, "INTERNAL_ERROR");

/** @param {number[]} counts */
const boundsOf = (counts) => counts.reduce((bounds, count) => [...bounds, bounds[bounds.length - 1] + count], [0]);

/**
 * `total` in parts proportional to `weights`, by largest remainder, at least one each.
 *
 * @param {number} total
 * @param {bigint[]} weights
 */
function apportion(total, weights) {
  const whole = sum(weights);
  const parts = weights.map((weight) => Number((BigInt(total) * weight) / whole));
  const remainders = weights.map((weight) => (BigInt(total) * weight) % whole);
  for (let left = total - parts.reduce((a, b) => a + b, 0); left > 0; left--) {
    const next = argMax(remainders);
    parts[next] += 1;
    remainders[next] = -1n;
  }
  for (let empty = parts.indexOf(0); empty >= 0; empty = parts.indexOf(0)) {
    parts[argMax(parts.map(BigInt))] -= 1;
    parts[empty] = 1;
  }
  return parts;
}

/**
 * @param {bigint[]} layers bytes of each
 * @param {bigint} ends bytes of embedding, norm and output head
 * @param {bigint[]} rooms bytes, by rank
 * @returns {number[]} bounds
 */
export function splitLayers(layers, ends, rooms) {
  fits(1 <= rooms.length && rooms.length <= MAX_WORLD, "no such number of ranks");
  fits(rooms.length <= layers.length, "fewer layers than ranks");
  const usable = rooms.map((room, rank) => (room * 9n) / 10n - (rank === 0 ? ends : 0n));
  fits(usable.every((room) => room > 0n) && sum(layers) <= sum(usable), "the weights do not fit");
  const counts = apportion(layers.length, usable);
  for (let moves = layers.length * rooms.length; ; moves--) {
    const bounds = boundsOf(counts);
    const spare = usable.map((room, rank) => room - sum(layers.slice(bounds[rank], bounds[rank + 1])));
    const loosest = argMax(spare);
    const tightest = argMax(spare.map((room) => -room));
    if (spare[tightest] >= 0n) return bounds;
    fits(moves > 0 && spare[loosest] > 0n && counts[tightest] > 1, "the layers of a rank do not fit");
    counts[tightest] -= 1;
    counts[loosest] += 1;
  }
}
