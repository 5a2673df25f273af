/**
 * Sealed frames (section 7): one `Sealer` and one `Opener` for each link, each with the secret of its direction. Both
 * count frames alike and take the next key right after the last frame of the present one, so nothing is sent for it.
 */

import { Failure } from "./failure.js";
import { SEALED, frameHeader } from "./frame.js";
import { AEAD_TAG, FIRST_KEY_UPDATE, KEY_UPDATE_INTERVAL } from "./limits.js";
import { trafficKeys } from "./schedule.js";
import { aeadOpen, aeadSeal } from "./suites.js";

/**
 * `iv xor count`, the count as 96 bits.
 *
 * @param {Buffer} iv
 * @param {bigint} count
 */
export function nonceAt(iv, count) {
  const nonce = Buffer.from(iv);
  nonce.writeBigUInt64BE(nonce.readBigUInt64BE(4) ^ count, 4);
  return nonce;
}

class Direction {
  #keys;
  #frames = FIRST_KEY_UPDATE;
  #seq = 0;

  /**
   * @param {import("./suites.js").Suite} suite
   * @param {Uint8Array} secret
   */
  constructor(suite, secret) {
    this.suite = suite;
    this.#keys = trafficKeys(secret);
  }

  /**
   * Key and nonce for one frame; the count goes on.
   *
   * @returns {[Buffer, Buffer]}
   */
  step() {
    const { key, iv, next } = this.#keys;
    const nonce = nonceAt(iv, BigInt(this.#seq));
    this.#seq += 1;
    if (this.#seq === this.#frames) {
      this.#keys = trafficKeys(next);
      this.#frames = KEY_UPDATE_INTERVAL;
      this.#seq = 0;
    }
    return [key, nonce];
  }
}

export class Sealer extends Direction {
  /**
   * @param {Uint8Array} plaintext
   * @returns {Buffer} a whole frame
   */
  seal(plaintext) {
    const header = frameHeader(SEALED, plaintext.length + AEAD_TAG);
    return Buffer.concat([header, aeadSeal(this.suite, ...this.step(), header, plaintext)]);
  }
}

export class Opener extends Direction {
  #dead = false;

  /**
   * The plaintext of the next frame. After a failure nothing opens any more.
   *
   * @param {import("./frame.js").Frame} frame
   */
  open(frame) {
    if (this.#dead) throw new Failure("AUTHENTICATION_FAILED", "nothing opens after a failure");
    this.#dead = true;
    const plaintext = aeadOpen(this.suite, ...this.step(), frame.header, frame.body);
    this.#dead = false;
    return plaintext;
  }
}
