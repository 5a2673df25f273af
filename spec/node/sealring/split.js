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
 * Layers of each rank, in proportion to `weights`, by largest remainder, at least one each. Shares
 * are in units of 1 / (1000 * whole * others) of a layer, so that all are whole numbers.
 *
 * @param {number} layers
 * @param {bigint[]} weights
 * @param {bigint} head thousandths of a layer
 */
function apportion(layers, weights, head) {
  const whole = sum(weights);
  const others = whole - weights[0];
  if (others === 0n && weights.length === 1) return [layers];
  const scale = others || 1n;
  const all = 1000n * BigInt(layers) * whole;
  const claim = (1000n * BigInt(layers) + head) * weights[0] - head * whole;
  const first = others === 0n ? all : claim > 0n ? claim : 0n;
  const shares = [first * scale, ...weights.slice(1).map((weight) => (all - first) * weight)];
  const layer = 1000n * whole * scale;
  const parts = shares.map((share) => Number(share / layer));
  const remainders = shares.map((share) => share % layer);
  for (let left = layers - parts.reduce((a, b) => a + b, 0); left > 0; left--) {
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
 * Of the bounds that `cuts` allow and every rank has room for, those nearest to `wanted`.
 *
 * @param {number[]} wanted
 * @param {number[]} cuts rising, with the number of layers last
 * @param {bigint[]} layers
 * @param {bigint[]} usable
 * @returns {number[] | null}
 */
function nearest(wanted, cuts, layers, usable) {
  /** @type {Map<number, {far: number, bounds: number[]}>} */
  let best = new Map([[0, { far: 0, bounds: [0] }]]);
  usable.forEach((room, rank) => {
    const after = new Map();
    for (const [begin, { far, bounds }] of [...best].sort(([a], [b]) => a - b)) {
      for (const end of cuts.filter((cut) => cut > begin && sum(layers.slice(begin, cut)) <= room)) {
        const found = { far: far + Math.abs(end - wanted[rank + 1]), bounds: [...bounds, end] };
        const known = after.get(end);
        if (!known || found.far < known.far || (found.far === known.far && isLower(found.bounds, known.bounds))) {
          after.set(end, found);
        }
      }
    }
    best = after;
  });
  return best.get(layers.length)?.bounds ?? null;
}

/**
 * @param {number[]} a
 * @param {number[]} b
 */
function isLower(a, b) {
  const at = a.findIndex((bound, i) => bound !== b[i]);
  return at >= 0 && a[at] < b[at];
}

/**
 * @param {bigint[]} layers bytes of each
 * @param {bigint} ends bytes of embedding, norm and output head
 * @param {bigint[]} rooms bytes, by rank
 * @param {bigint} head the output head's work, in thousandths of a layer's
 * @param {number[]} joined layers before which the model cannot be cut
 * @returns {number[]} bounds
 */
export function splitLayers(layers, ends, rooms, head, joined) {
  fits(1 <= rooms.length && rooms.length <= MAX_WORLD, "no such number of ranks");
  fits(rooms.length <= layers.length, "fewer layers than ranks");
  const cuts = layers.map((_, at) => at + 1).filter((cut) => !joined.includes(cut));
  fits(rooms.length <= cuts.length, "the model cannot be cut into as many parts");
  const usable = rooms.map((room, rank) => (room * 9n) / 10n - (rank === 0 ? ends : 0n));
  fits(usable.every((room) => room >= 0n) && sum(layers) <= sum(usable), "the weights do not fit");
  const weights = sum(usable) > 0n ? usable : usable.map(() => 1n);
  const bounds = nearest(boundsOf(apportion(layers.length, weights, head)), cuts, layers, usable);
  fits(bounds !== null, "the layers of a rank do not fit");
  return /** @type {number[]} */ (bounds);
}
