/**
 * The inner seal (section 7.3): tensors, sealed from one process that computes to the next. A tensor's counter says
 * which key it is under; both ends take the next secret whenever a counter passes the last of a key, and never go
 * back.
 */

import { Failure, must } from "./failure.js";
import { FIRST_KEY_UPDATE, KEY_UPDATE_INTERVAL, MAX_INNER_SKIP } from "./limits.js";
import { trafficKeys } from "./schedule.js";
import { nonceAt } from "./seal.js";
import { aeadOpen, aeadSeal } from "./suites.js";
import { u16, u32, u64, u8 } from "./wire.js";

/**
 * Where a tensor belongs.
 *
 * @typedef {object} Place
 * @property {bigint} instance of the epoch
 * @property {bigint} counter of the epoch
 * @property {bigint} n of the step
 * @property {number} group that decodes; `NO_GROUP` in a prefill
 * @property {number} boundary the first layer after this hop
 * @property {bigint[]} uids of its rows, in row order
 */

/**
 * @param {Uint8Array} cluster
 * @param {Place} place
 * @param {import("./tensor.js").Tensor} tensor
 */
const associatedData = (cluster, place, tensor) =>
  Buffer.concat([
    cluster,
    u64.write(place.instance),
    u64.write(place.counter),
    u64.write(place.n),
    u16.write(place.group),
    u16.write(place.boundary),
    u8.write(tensor.dtype),
    u8.write(tensor.shape.length),
    u32.write(place.uids.length),
    ...tensor.shape.map(u32.write),
    ...place.uids.map(u64.write),
  ]);

class Hop {
  #keys;
  #lastOfKey = BigInt(FIRST_KEY_UPDATE) - 1n;
  #next = 0n;

  /**
   * @param {import("./suites.js").Suite} suite
   * @param {Uint8Array} secret the activation secret of the direction
   * @param {Uint8Array} cluster
   */
  constructor(suite, secret, cluster) {
    this.suite = suite;
    this.cluster = cluster;
    this.#keys = trafficKeys(secret);
  }

  /** The least counter that has not been used. */
  get next() {
    return this.#next;
  }

  /**
   * Key and nonce for a counter; it and all before it are used up.
   *
   * @param {bigint} counter
   * @returns {[Buffer, Buffer]}
   */
  step(counter) {
    must(counter >= this.#next, "a counter again", "AUTHENTICATION_FAILED");
    must(counter - this.#next <= MAX_INNER_SKIP, "too many counters skipped", "LIMIT_EXCEEDED");
    this.#next = counter + 1n;
    for (; counter > this.#lastOfKey; this.#lastOfKey += BigInt(KEY_UPDATE_INTERVAL)) {
      this.#keys = trafficKeys(this.#keys.next);
    }
    return [this.#keys.key, nonceAt(this.#keys.iv, counter)];
  }
}

export class InnerSealer extends Hop {
  /**
   * @param {import("./tensor.js").Tensor} tensor not sealed
   * @param {Place} place
   * @returns {import("./tensor.js").Tensor}
   */
  seal(tensor, place) {
    const counter = this.next;
    const associated = associatedData(this.cluster, place, tensor);
    const data = aeadSeal(this.suite, ...this.step(counter), associated, tensor.data);
    return { ...tensor, sealed: true, counter, data };
  }
}

export class InnerOpener extends Hop {
  #dead = false;

  /**
   * The elements of the next tensor. After a failure nothing opens any more.
   *
   * @param {import("./tensor.js").Tensor} tensor
   * @param {Place} place where the receiver expects it
   */
  open(tensor, place) {
    if (this.#dead) throw new Failure("AUTHENTICATION_FAILED", "nothing opens after a failure");
    this.#dead = true;
    must(tensor.sealed, "a tensor without the inner seal", "POLICY_MISMATCH");
    const associated = associatedData(this.cluster, place, tensor);
    const elements = aeadOpen(this.suite, ...this.step(tensor.counter), associated, tensor.data);
    this.#dead = false;
    return elements;
  }
}
