/** The head in one epoch of tensor parallelism (section 11.9): when a step is over, and what ends the epoch. */

import { isDeepStrictEqual } from "node:util";

import { must } from "./failure.js";
import { FAILED } from "./rank.js";

/** @typedef {import("./messages.js").Message} Message */

export class Lockstep {
  /** The steps that are over, in order. @type {{n: bigint, ids: number[]}[]} */
  over = [];
  /** What ended the epoch. @type {{rank: number, kind: number, others: number[], steps: bigint[]} | null} */
  failed = null;

  #epoch;
  #world;
  /** The answers to each step under way, by rank. @type {{n: bigint, answers: Map<number, Message>}[]} */
  #underWay = [];
  /** Kinds of failures by rank, the first rank at fault first. @type {Map<number, number>} */
  #failures = new Map();

  /**
   * @param {{instance: bigint, counter: bigint}} epoch
   * @param {number} world the number of ranks
   */
  constructor(epoch, world) {
    this.#epoch = epoch;
    this.#world = world;
  }

  /** @param {Message} step */
  begin({ n }) {
    this.#underWay.push({ n, answers: new Map() });
  }

  /**
   * @param {number} rank 0: the head's own engine
   * @param {Message} done
   */
  answer(rank, done) {
    const { instance, counter } = this.#epoch;
    must(done.instance !== instance || done.counter <= counter, "an epoch that never was [EP-06]");
    if (done.instance !== instance || done.counter < counter || this.failed) return; // [TP-06]
    if (done.message === "CANNOT_SERVE") {
      this.#blame(rank, done.kind);
      this.#end();
      return;
    }
    const owed = this.#underWay.find(({ answers }) => !answers.has(rank));
    must(owed?.n === done.n, "an answer that is not owed next [TP-02]");
    owed.answers.set(rank, done);
    if (done.failed) this.#blame(rank, done.failed.kind);
    if (done.tensors.length > 0) this.#blame(rank, FAILED.INTEGRITY); // [TP-02]
    if (this.#failures.size === 0) this.#finish();
    if (this.#failures.size > 0 && this.#underWay.every((step) => this.#isAnswered(step))) this.#end();
  }

  /** The time to drain is up. */
  wait() {
    if (this.#failures.size > 0 && !this.failed) this.#end();
  }

  /** @param {{answers: Map<number, Message>}} step */
  #isAnswered({ answers }) {
    return answers.size === this.#world;
  }

  /** The steps that all have answered, as long as all have drawn the same [TP-03], [TP-04]. */
  #finish() {
    for (let step = this.#underWay[0]; step && this.#isAnswered(step); step = this.#underWay[0]) {
      const { ids } = /** @type {Message} */ (step.answers.get(0));
      const isOther = (/** @type {number} */ rank) => !isDeepStrictEqual(step.answers.get(rank)?.ids, ids);
      const other = [...step.answers.keys()].sort((a, b) => a - b).find(isOther);
      if (other !== undefined) {
        this.#blame(other, FAILED.LEDGER);
        return;
      }
      this.#underWay.shift();
      this.over.push({ n: step.n, ids });
    }
  }

  /**
   * @param {number} rank
   * @param {number} kind
   */
  #blame(rank, kind) {
    if (!this.#failures.has(rank)) this.#failures.set(rank, kind);
  }

  #end() {
    const [[rank, kind], ...others] = this.#failures;
    this.failed = { rank, kind, others: others.map(([other]) => other), steps: this.#underWay.map(({ n }) => n) };
    this.#underWay = [];
  }
}
