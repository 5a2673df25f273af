/** The two key exchanges of the handshake: X25519 (RFC 7748) and ML-KEM-768 (FIPS 203). */

import { createPrivateKey, createPublicKey, diffieHellman } from "node:crypto";

import { ml_kem768 } from "@noble/post-quantum/ml-kem.js";

import { Failure, must } from "./failure.js";

const PKCS8 = Buffer.from("302e020100300506032b656e04220420", "hex");
const SPKI = Buffer.from("302a300506032b656e032100", "hex");

/** @param {Uint8Array} scalar 32 bytes */
export function x25519(scalar) {
  const privateKey = createPrivateKey({ key: Buffer.concat([PKCS8, scalar]), format: "der", type: "pkcs8" });
  return {
    publicKey: createPublicKey(privateKey).export({ format: "der", type: "spki" }).subarray(SPKI.length),

    /**
     * The shared secret; all zeros are refused [HS-07].
     *
     * @param {Uint8Array} peer
     */
    agree(peer) {
      const publicKey = createPublicKey({ key: Buffer.concat([SPKI, peer]), format: "der", type: "spki" });
      try {
        return diffieHellman({ privateKey, publicKey });
      } catch {
        throw new Failure("PROTOCOL_ERROR", "a point of small order");
      }
    },
  };
}

const MODULUS = 3329;
const COEFFICIENT_BYTES = 1152;

/**
 * The encapsulation key check of FIPS 203 section 7.2: every coefficient, of 12 bits each, is below the modulus.
 *
 * @param {Uint8Array} key 1184 bytes
 */
export function checkEncapsulationKey(key) {
  for (let i = 0; i < COEFFICIENT_BYTES; i += 3) {
    const pair = key[i] | (key[i + 1] << 8) | (key[i + 2] << 16);
    must((pair & 0xfff) < MODULUS && pair >> 12 < MODULUS, "no encapsulation key");
  }
}

/** @param {Uint8Array} seed 64 bytes, d ‖ z */
export function kemKeys(seed) {
  const { publicKey, secretKey } = ml_kem768.keygen(seed);
  return {
    publicKey: Buffer.from(publicKey),
    decapsulate: (/** @type {Uint8Array} */ ciphertext) => Buffer.from(ml_kem768.decapsulate(ciphertext, secretKey)),
  };
}

/** @param {Uint8Array} publicKey */
export function encapsulate(publicKey) {
  const { cipherText, sharedSecret } = ml_kem768.encapsulate(publicKey);
  return { ciphertext: Buffer.from(cipherText), secret: Buffer.from(sharedSecret) };
}
