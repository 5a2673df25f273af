/**
 * Node keys and signatures (section 3.1): ECDSA on P-256 with SHA-256, in the one form that is taken. Node's own
 * crypto verifies; signing is left to a library that makes nonces as in RFC 6979.
 */

import { createECDH, createPublicKey, verify as verifyEcdsa } from "node:crypto";

import { p256 } from "@noble/curves/nist.js";

import { Failure, must } from "./failure.js";
import { hash } from "./schedule.js";

const HALF_ORDER = (0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551n - 1n) / 2n;
const ORDER = 2n * HALF_ORDER + 1n;

/**
 * The coordinate of a point, as JSON Web Keys write it.
 *
 * @param {Uint8Array} publicKey
 * @param {number} from
 */
const coordinate = (publicKey, from) => Buffer.from(publicKey.subarray(from, from + 32)).toString("base64url");

/**
 * A public key, in the one form that is one [ID-01].
 *
 * @param {Uint8Array} publicKey
 * @param {import("./failure.js").FailureClass} failureClass
 */
export function readPublicKey(publicKey, failureClass = "AUTHENTICATION_FAILED") {
  must(publicKey.length === 65 && publicKey[0] === 4, "no uncompressed point", failureClass);
  const jwk = { kty: "EC", crv: "P-256", x: coordinate(publicKey, 1), y: coordinate(publicKey, 33) };
  try {
    return createPublicKey({ key: jwk, format: "jwk" });
  } catch {
    throw new Failure(failureClass, "a point that is not on the curve");
  }
}

/** @param {Uint8Array} publicKey */
export const nodeId = (publicKey) => hash(publicKey);

const integer = (/** @type {Uint8Array} */ b) => BigInt(`0x${Buffer.from(b).toString("hex")}`);

/**
 * @param {Uint8Array} publicKey
 * @param {Uint8Array} signature
 * @param {Uint8Array} message
 */
export function verify(publicKey, signature, message) {
  const key = readPublicKey(publicKey);
  must(signature.length === 64, "a signature of another length", "AUTHENTICATION_FAILED");
  const [r, s] = [integer(signature.subarray(0, 32)), integer(signature.subarray(32))];
  must(0n < r && r < ORDER && 0n < s && s <= HALF_ORDER, "a signature out of range", "AUTHENTICATION_FAILED");
  const holds = verifyEcdsa("sha256", message, { key, dsaEncoding: "ieee-p1363" }, signature);
  must(holds, "a signature that does not verify", "AUTHENTICATION_FAILED");
}

/**
 * What a signature is over: the protocol string and the context in front of what is signed [ID-03].
 *
 * @param {string} protocol
 * @param {"RESP" | "FIN" | "JOIN-RESP" | "JOIN-FIN" | "ROSTER" | "SPARE" | "COORDINATOR" | "EVIDENCE" | "VOTE"} context
 * @param {Uint8Array} digest
 */
export const signedPayload = (protocol, context, digest) => Buffer.concat([Buffer.from(protocol + context), digest]);

export class Identity {
  #scalar;

  /** @param {Uint8Array} scalar the private key */
  constructor(scalar) {
    const ecdh = createECDH("prime256v1");
    ecdh.setPrivateKey(scalar);
    this.#scalar = scalar;
    this.publicKey = ecdh.getPublicKey();
    this.id = nodeId(this.publicKey);
  }

  /**
   * @param {Uint8Array} message
   * @returns {Buffer} r ‖ s, s in the lower half
   */
  sign(message) {
    return Buffer.from(p256.sign(message, this.#scalar, { lowS: true }));
  }
}
