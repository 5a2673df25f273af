/** The suites (section 5.1), and their AEADs: key 32, nonce 12, tag 16 bytes. */

import { createCipheriv, createDecipheriv } from "node:crypto";

import { Failure, must } from "./failure.js";
import { AEAD_TAG } from "./limits.js";

/**
 * @typedef {object} Suite
 * @property {number} code
 * @property {string} protocol P, the protocol string
 * @property {import("node:crypto").CipherGCMTypes} cipher as OpenSSL names it
 */

/** @type {Readonly<Record<number, Suite>>} */
export const SUITES = Object.freeze({
  1: { code: 1, protocol: "sealring/1 aes256gcm", cipher: "aes-256-gcm" },
  2: {
    code: 2,
    protocol: "sealring/1 chacha20poly1305",
    cipher: /** @type {import("node:crypto").CipherGCMTypes} */ ("chacha20-poly1305"),
  },
});

const OPTIONS = { authTagLength: AEAD_TAG };

/** The nonce of what one key seals once. */
export const NONCE_0 = Buffer.alloc(12);

/**
 * @param {Suite} suite
 * @param {Uint8Array} key
 * @param {Uint8Array} nonce
 * @param {Uint8Array} associated
 * @param {Uint8Array} plaintext
 * @returns {Buffer} ciphertext and tag
 */
export function aeadSeal(suite, key, nonce, associated, plaintext) {
  const cipher = createCipheriv(suite.cipher, key, nonce, OPTIONS);
  cipher.setAAD(associated);
  return Buffer.concat([cipher.update(plaintext), cipher.final(), cipher.getAuthTag()]);
}

/**
 * @param {Suite} suite
 * @param {Uint8Array} key
 * @param {Uint8Array} nonce
 * @param {Uint8Array} associated
 * @param {Buffer} sealed ciphertext and tag
 * @returns {Buffer} the plaintext; a `Failure` when it does not open
 */
export function aeadOpen(suite, key, nonce, associated, sealed) {
  must(sealed.length >= AEAD_TAG, "shorter than a tag", "AUTHENTICATION_FAILED");
  const decipher = createDecipheriv(suite.cipher, key, nonce, OPTIONS);
  decipher.setAAD(associated);
  decipher.setAuthTag(sealed.subarray(-AEAD_TAG));
  const plaintext = decipher.update(sealed.subarray(0, -AEAD_TAG));
  try {
    decipher.final();
  } catch {
    plaintext.fill(0);
    throw new Failure("AUTHENTICATION_FAILED", "it does not open");
  }
  return plaintext;
}
