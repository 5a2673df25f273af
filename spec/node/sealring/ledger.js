/**
 * The ledger (section 11.3): which rows and snapshots exist, how long they are, and in what order a group's rows
 * stand. A step is applied to a copy, so that one that is refused leaves nothing behind.
 */

import { must } from "./failure.js";
import { MAX_TOKENS } from "./limits.js";
import { WORK } from "./messages.js";
import { hash } from "./schedule.js";
import { u16, u32, u64, u8 } from "./wire.js";

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
   * How many of the last tokens of a row are guesses, by uid, where there are any. Such a row is alone in its group.
   *
   * @type {Map<bigint, number>}
   */
  guessed = new Map();
  /** How many tokens the last step scored. */
  scored = 0;

  /** @param {{number: bigint, length: number}[]} kept what BOOTSTRAP has it keep of the epoch before [LG-06] */
  constructor(kept = []) {
    for (const { number, length } of kept) this.snapshots.set(number, length);
  }

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
    next.guessed = new Map(this.guessed);
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
      u32.write(this.scored),
      u32.write(rows.size),
      u32.write(snapshots.size),
      u32.write(groups.size),
      ...lengths(byNumber(rows)),
      ...lengths(byNumber(snapshots)),
      ...byNumber(groups).flatMap(([group, members]) => [
        u16.write(group),
        u32.write(members.size),
        ...[...members].flatMap(([uid, length]) => [
          u64.write(uid),
          u32.write(length),
          u8.write(this.guessed.get(uid) ?? 0),
        ]),
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
    for (const { uid, count } of step.back) this.#takeBack(uid, count);
    for (const { uid, handle } of step.save) {
      const length = this.private.get(uid) ?? this.#groupOf(uid)?.get(uid);
      must(length !== undefined, "saves a row without a cache");
      must(handle !== 0n && !this.#inUse(handle), "a handle that cannot be given");
      this.snapshots.set(handle, length);
    }
    for (const uid of step.evict) {
      must(this.#groupOf(uid)?.delete(uid), "evicts a row that is in no group");
      this.guessed.delete(uid);
      for (const [group, rows] of this.groups) if (rows.size === 0) this.groups.delete(group);
    }
    for (const number of step.drop) {
      must(this.private.delete(number) || this.snapshots.delete(number), "drops what is not there");
    }
    for (const { uid, handle, keep } of step.open) {
      if (uid === handle && this.snapshots.has(uid)) {
        must(keep === this.snapshots.get(uid), "takes another length over than was kept");
        this.snapshots.delete(uid);
        this.private.set(uid, keep);
        continue;
      }
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
      for (const other of rows.keys()) this.guessed.delete(other);
      this.groups.set(group, rows.set(uid, length));
    }
    if (step.work === WORK.PREFILL || step.work === WORK.SCORED) this.#prefill(step);
    if (step.work === WORK.SCORED) this.scored = step.count;
    if (step.work === WORK.DECODE) this.#decode(Number(step.target), step.count, step.position);
  }

  /**
   * @param {bigint} uid
   * @param {number} count
   */
  #takeBack(uid, count) {
    const guessed = this.guessed.get(uid) ?? 0;
    must(count > 0, "takes nothing back");
    must(count <= guessed, "takes back what is no guess");
    const rows = /** @type {Map<bigint, number>} */ (this.#groupOf(uid));
    rows.set(uid, /** @type {number} */ (rows.get(uid)) - count);
    this.#setGuessed(uid, guessed - count);
  }

  /**
   * @param {bigint} uid
   * @param {number} count
   */
  #setGuessed(uid, count) {
    if (count > 0) this.guessed.set(uid, count);
    else this.guessed.delete(uid);
  }

  /** @param {{target: bigint, position: number, count: number}} step */
  #prefill({ target, position, count }) {
    must(this.#privateLength(target) === position, "reads elsewhere than the row ends");
    must(position + count <= MAX_TOKENS, "a row that is too long");
    this.private.set(target, position + count);
  }

  /**
   * @param {number} group
   * @param {number} count how many of its row's last tokens, with those that it reads, are guesses
   * @param {number} ahead how many guesses it reads after its first token, which is one, too, if *count* is more
   */
  #decode(group, count, ahead) {
    const rows = this.groups.get(group);
    must(rows, "decodes a group without rows");
    const [first] = rows.keys();
    must(count === 0 || rows.size === 1, "guesses for several rows");
    const most = (this.guessed.get(first) ?? 0) + 1 + ahead;
    must(count === ahead || count <= most, "more guesses than there can be");
    this.#setGuessed(first, count);
    for (const [uid, length] of rows) {
      must(length + 1 + ahead <= MAX_TOKENS, "a row that is too long");
      rows.set(uid, length + 1 + ahead);
    }
  }
}
