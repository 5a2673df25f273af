/**
 * The key schedule (section 6): every secret of a link, from its first key agreement to its last key update. Each
 * label of section 6.1 stands here once.
 */

import { createHash, createHmac, timingSafeEqual } from "node:crypto";

import { u8 } from "./wire.js";

/** @param {...Uint8Array} parts */
export const hash = (...parts) => createHash("sha256").update(Buffer.concat(parts)).digest();

/**
 * @param {Uint8Array} key
 * @param {Uint8Array} message
 */
export const hmac = (key, message) => createHmac("sha256", key).update(message).digest();

/**
 * Whether two tags are the same, in a time that does not tell where they differ.
 *
 * @param {Uint8Array} a
 * @param {Uint8Array} b
 */
export const sameTag = (a, b) => a.length === b.length && timingSafeEqual(a, b);

/**
 * @param {Uint8Array} salt
 * @param {Uint8Array} ikm
 */
const extract = (salt, ikm) => hmac(salt, ikm);

/**
 * HKDF's Expand, to 32 bytes at most: its first block is enough.
 *
 * @param {Uint8Array} prk
 * @param {Uint8Array} info
 */
const expand = (prk, info, length = 32) => hmac(prk, Buffer.concat([info, u8.write(1)])).subarray(0, length);

const ascii = (/** @type {string} */ s) => Buffer.from(s, "ascii");

/**
 * K_B, the key of INIT's tag.
 *
 * @param {Uint8Array} cluster
 * @param {Uint8Array} publicKey of the responder
 */
export const admissionKey = (cluster, publicKey) =>
  extract(ascii("sealring/1adm"), Buffer.concat([cluster, publicKey]));

/**
 * K_J, the key of JOIN_INIT's tag.
 *
 * @param {Uint8Array} coordinator what an invitation names
 * @param {Uint8Array} secret of that invitation
 */
export const joinKey = (coordinator, secret) => extract(ascii("sealring/1join"), Buffer.concat([coordinator, secret]));

/**
 * t1 of a join, over JOIN_INIT.
 *
 * @param {import("./suites.js").Suite} suite
 * @param {Uint8Array} coordinator what the invitation names
 * @param {Uint8Array} init
 */
export const joinTranscript = (suite, coordinator, init) => hash(ascii(`${suite.protocol}join`), coordinator, init);

/**
 * t1, over INIT.
 *
 * @param {import("./suites.js").Suite} suite
 * @param {Uint8Array} cluster
 * @param {Uint8Array} publicKey of the responder
 * @param {Uint8Array} init
 */
export const firstTranscript = (suite, cluster, publicKey, init) =>
  hash(ascii(suite.protocol), cluster, publicKey, init);

/**
 * PRK.
 *
 * @param {import("./suites.js").Suite} suite
 * @param {Uint8Array} kemSecret
 * @param {Uint8Array} x25519Secret
 * @param {Uint8Array} shared in a join, the invitation's secret
 */
export const exchangeSecret = (suite, kemSecret, x25519Secret, shared = Buffer.alloc(0)) =>
  extract(hash(ascii(suite.protocol)), Buffer.concat([kemSecret, x25519Secret, shared]));

/**
 * The keys that seal RESP and FIN, and those of the MACs within.
 *
 * @param {import("./suites.js").Suite} suite
 * @param {Uint8Array} prk
 * @param {Uint8Array} t2
 */
export function handshakeKeys(suite, prk, t2) {
  const key = (/** @type {string} */ label) => expand(prk, Buffer.concat([ascii(suite.protocol + label), t2]));
  return { kR: key("kR"), mR: key("mR"), kI: key("kI"), mI: key("mI") };
}

export const TO_RESPONDER = 0;
export const TO_INITIATOR = 1;

/**
 * The two secrets of one direction of a link.
 *
 * @param {import("./suites.js").Suite} suite
 * @param {Uint8Array} prk
 * @param {number} direction
 * @param {Uint8Array} sender node id
 * @param {Uint8Array} receiver node id
 * @param {Uint8Array} t4
 */
export function linkSecrets(suite, prk, direction, sender, receiver, t4) {
  const secret = (/** @type {string} */ label) =>
    expand(prk, Buffer.concat([ascii(suite.protocol + label), u8.write(direction), sender, receiver, t4]));
  return { traffic: secret("traffic"), activation: secret("activation") };
}

/**
 * What a secret gives until the next key update.
 *
 * @param {Uint8Array} secret
 */
export const trafficKeys = (secret) => ({
  key: expand(secret, ascii("key")),
  iv: expand(secret, ascii("iv"), 12),
  next: expand(secret, ascii("next")),
});
