/** How a row draws a token, and the key that it draws with (section 11.4). */

import { blake2b } from "@noble/hashes/blake2.js";

import { u16, u64 } from "./wire.js";

const PERSONALIZATION = Buffer.from("sealring/row\0\0\0\0");

/**
 * @param {bigint} seed
 * @param {number} choice
 * @param {bigint} position
 * @returns {[number, number]}
 */
export function samplingKey(seed, choice, position) {
  const place = Buffer.concat([u64.write(seed), u16.write(choice), u64.write(position)]);
  const key = Buffer.from(blake2b(place, { dkLen: 8, personalization: PERSONALIZATION }));
  return [key.readUInt32BE(0), key.readUInt32BE(4)];
}

const ROTATIONS = [
  [13, 15, 26, 6],
  [17, 29, 16, 24],
];

/** Threefry-2x32 with 20 rounds. */
function threefry([k0, k1], [c0, c1]) {
  const schedule = [k0, k1, (k0 ^ k1 ^ 0x1bd11bda) >>> 0];
  let a = (c0 + k0) >>> 0;
  let b = (c1 + k1) >>> 0;
  for (let turn = 0; turn < 5; turn++) {
    for (const bits of ROTATIONS[turn % 2]) {
      a = (a + b) >>> 0;
      b = (a ^ ((b << bits) | (b >>> (32 - bits)))) >>> 0;
    }
    a = (a + schedule[(turn + 1) % 3]) >>> 0;
    b = (b + schedule[(turn + 2) % 3] + turn + 1) >>> 0;
  }
  return [a, b];
}

/** One u for each token of a vocabulary of this size. */
function uniforms(key, size) {
  const half = Math.floor(size / 2);
  const odd = size % 2;
  const words = new Array(size);
  for (let i = 0; i < half; i++) {
    [words[i], words[i + half + odd]] = threefry(key, [i, i + half + odd]);
  }
  if (odd) words[half] = threefry(key, [half, 0])[0];
  return words.map((word) => Math.min(Math.fround(word) / 2 ** 32, 1 - 2 ** -24));
}

/** Bias, then penalties. */
function adjusted(row, logits) {
  const l = [...logits];
  for (const [token, value] of row.bias) l[token] += value;
  const drawn = row.history.slice(row.history.length - row.generated);
  for (const token of new Set(row.history)) {
    l[token] = l[token] > 0 ? l[token] / row.repetition : l[token] * row.repetition;
  }
  for (const token of drawn) l[token] -= row.frequency;
  for (const token of new Set(drawn)) l[token] -= row.presence;
  return l;
}

/** The lowest index of the greatest. */
function greatest(values) {
  return values.reduce((best, value, i) => (value > values[best] ? i : best), 0);
}

/** The least z that top_k and top_p keep. */
function threshold(row, z) {
  const falling = [...z].sort((a, b) => b - a).slice(0, row.top_k || z.length);
  if (row.top_p === 1) return falling.at(-1);
  const total = falling.reduce((sum, value) => sum + Math.exp(value), 0);
  let least = falling[0];
  let before = 0;
  for (const value of falling) {
    if (before >= row.top_p) break;
    least = value;
    before += Math.exp(value) / total;
  }
  return least;
}

/**
 * The token that a row is given.
 *
 * @param {any} row fields of ROW
 * @param {number[]} logits
 * @param {bigint} position
 * @returns {number}
 */
export function draw(row, logits, position) {
  const l = adjusted(row, logits);
  if (row.temperature === 0) return greatest(l);
  const top = Math.max(...l);
  const z = l.map((value) => (value - top) / Math.max(row.temperature, 1e-6));
  const least = Math.max(threshold(row, z), row.min_p > 0 ? Math.log(row.min_p) : -Infinity);
  const u = uniforms(samplingKey(BigInt(row.seed), row.choice, position), z.length);
  return greatest(z.map((value, i) => (value < least ? -Infinity : value - Math.log(-Math.log(u[i])))));
}
