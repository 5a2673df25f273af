/** The key with which a row draws a token (section 11.4). */

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
