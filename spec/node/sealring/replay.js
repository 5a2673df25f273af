/** The admission tags that a node has taken [HS-04] [JN-08]: the newest, up to a limit. */

import { REPLAY_CACHE } from "./limits.js";

export class ReplayCache {
  /** A set, since it remembers the order in which its values came. */
  #tags = new Set();
  #size;

  /** @param {number} size how many tags */
  constructor(size = REPLAY_CACHE) {
    this.#size = size;
  }

  /**
   * @param {Buffer} tag
   * @returns {boolean} whether it is new
   */
  add(tag) {
    const name = tag.toString("hex");
    if (this.#tags.has(name)) return false;
    this.#tags.add(name);
    if (this.#tags.size > this.#size) this.#tags.delete(this.#tags.values().next().value);
    return true;
  }
}
