/**
 * The ledger (section 11.3): which rows and snapshots exist, how long they are, and in what order a group's rows
 * stand. A step is applied to a copy, so that one that is refused leaves nothing behind.
 */

import { must } from "./failure.js";
import { MAX_TOKENS } from "./limits.js";
import { WORK } from "./messages.js";
import { hash } from "./schedule.js";
import { u16, u32, u64 } from "./wire.js";

const DIGEST = 16;

/**
 * @template K, V
 * @param {Map<K, V>} map
 * @returns {[K, V][]}
 */
const byNumber = (map) => [...map].sort(([a], [b]) => (a < b ? -1 : 1));

export class Ledger {
  /** Lengths of the rows that are read in, by uid. @type {Map<bigint, number>} */
  private = new Map();
  /** Lengths of kept caches, by handle. @type {Map<bigint, number>} */
  snapshots = new Map();
  /** Lengths by uid, in row order, by group; no group is empty. @type {Map<number, Map<bigint, number>>} */
  groups = new Map();

  /**
   * The ledger after a step that came; a `Failure` when it does not fit this one, or its digest the next [LG-01].
   *
   * @param {any} step
   */
  after(step) {
    const next = this.applied(step);
    must(next.digest(step.n).equals(step.digest), "another ledger than the step's");
    return next;
  }

  /**
   * The ledger after a step that is being written: its digest is not looked at.
   *
   * @param {any} step
   */
  applied(step) {
    const next = new Ledger();
    next.private = new Map(this.private);
    next.snapshots = new Map(this.snapshots);
    next.groups = new Map([...this.groups].map(([group, rows]) => [group, new Map(rows)]));
    next.#apply(step);
    return next;
  }

  /** @param {bigint} n the number of the step that led here */
  digest(n) {
    const { private: rows, snapshots, groups } = this;
    const lengths = (/** @type {[bigint, number][]} */ entries) =>
      entries.flatMap(([number, length]) => [u64.write(number), u32.write(length)]);
    return hash(
      u64.write(n),
      u32.write(rows.size),
      u32.write(snapshots.size),
      u32.write(groups.size),
      ...lengths(byNumber(rows)),
      ...lengths(byNumber(snapshots)),
      ...byNumber(groups).flatMap(([group, members]) => [
        u16.write(group),
        u32.write(members.size),
        ...lengths([...members]),
      ]),
    ).subarray(0, DIGEST);
  }

  /** @param {bigint} number */
  #inUse(number) {
    return this.private.has(number) || this.snapshots.has(number) || this.#groupOf(number) !== undefined;
  }

  /**
   * The rows of the group that a row is in.
   *
   * @param {bigint} uid
   */
  #groupOf(uid) {
    return [...this.groups.values()].find((rows) => rows.has(uid));
  }

  /** @param {bigint} uid */
  #privateLength(uid) {
    const length = this.private.get(uid);
    must(length !== undefined, "no private cache");
    return length;
  }

  /** @param {any} step */
  #apply(step) {
    for (const { uid, handle } of step.save) {
      const length = this.private.get(uid) ?? this.#groupOf(uid)?.get(uid);
      must(length !== undefined, "saves a row without a cache");
      must(handle !== 0n && !this.#inUse(handle), "a handle that cannot be given");
      this.snapshots.set(handle, length);
    }
    for (const uid of step.evict) {
      must(this.#groupOf(uid)?.delete(uid), "evicts a row that is in no group");
      for (const [group, rows] of this.groups) if (rows.size === 0) this.groups.delete(group);
    }
    for (const number of step.drop) {
      must(this.private.delete(number) || this.snapshots.delete(number), "drops what is not there");
    }
    for (const { uid, handle, keep } of step.open) {
      must(uid !== 0n && !this.#inUse(uid), "a uid that cannot be given");
      const kept = handle === 0n ? 0 : this.snapshots.get(handle);
      must(kept !== undefined, "opens from no snapshot");
      must(handle === 0n ? keep === 0 : 0 < keep && keep <= kept, "keeps what is not there");
      this.private.set(uid, keep);
    }
    for (const { uid, group } of step.join) {
      const length = this.#privateLength(uid);
      this.private.delete(uid);
      const rows = this.groups.get(group) ?? new Map();
      this.groups.set(group, rows.set(uid, length));
    }
    if (step.work === WORK.PREFILL) this.#prefill(step);
    if (step.work === WORK.DECODE) this.#decode(Number(step.target));
  }

  /** @param {{target: bigint, position: number, count: number}} step */
  #prefill({ target, position, count }) {
    must(this.#privateLength(target) === position, "reads elsewhere than the row ends");
    must(position + count <= MAX_TOKENS, "a row that is too long");
    this.private.set(target, position + count);
  }

  /** @param {number} group */
  #decode(group) {
    const rows = this.groups.get(group);
    must(rows, "decodes a group without rows");
    for (const [uid, length] of rows) {
      must(length < MAX_TOKENS, "a row that is too long");
      rows.set(uid, length + 1);
    }
  }
}
