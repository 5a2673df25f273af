/**
 * A rank after the head (sections 11.2, 11.7 and 11.9), without links, engine or clock: what it makes of the head's
 * orders, its way into a collective, and its answers to steps. Chains of a pipeline are not here: `live.js` has one.
 *
 * What happens to it are calls; what it says stands in `toHead` and `toEngine`. `told` is what the head has said of why
 * there is no epoch, and holds. `restarts` counts the engine
 * processes that were replaced because they had been in a collective, or on their way into one.
 */

import { isDeepStrictEqual } from "node:util";

import { must } from "./failure.js";
import {
  ENTRY_WEIGHT,
  HISTORY_WEIGHT,
  MAX_IDS,
  MAX_ROWS,
  MAX_STEPS_WAITING,
  MAX_WEIGHT_WAITING,
  NO_RANK,
} from "./limits.js";
import { BACKEND } from "./messages.js";
import { PURPOSE } from "./roles.js";
import { TEXT, WITNESS } from "./roster.js";

/** The step version that this rank knows (8.5). */
const STEPS = 1;

export const FAILED = Object.freeze({ ENGINE_LOST: 2, LEDGER: 3, INTEGRITY: 7, UNSERVABLE: 10 });

const OUTSIDE = 10; // a hindrance (8.14)
const LOOPBACK = "127.0.0.1";
const NOWHERE = { host: LOOPBACK, port: 1 };

/** @typedef {import("./messages.js").Message} Message */
/** @typedef {{rank: number, kind: number, message: string}} Failed */

const isCollective = (/** @type {Message | null} */ order) => order !== null && order.backend !== BACKEND.PIPELINE;
const joins = (/** @type {Message} */ order) => order.hosts.some((/** @type {any} */ { port }) => port > 0);
const isSameEpoch = (/** @type {any} */ a, /** @type {any} */ b) =>
  a.instance === b.instance && a.counter === b.counter;
const isLater = (/** @type {any} */ a, /** @type {any} */ b) => a.instance === b.instance && a.counter > b.counter;

/** What a STEP weighs while it waits [ST-04]. */
const weigh = (/** @type {Message} */ { ids, tensors, back, save, evict, drop, open, join }) => {
  const entries = [ids, back, save, evict, drop, open, join].reduce((sum, list) => sum + list.length, 0);
  const bytes = tensors.reduce((/** @type {number} */ sum, /** @type {any} */ { data }) => sum + data.length, 0);
  return bytes + ENTRY_WEIGHT * entries;
};

export class Rank {
  /** @type {Message[]} */
  toHead = [];
  /** @type {Message[]} */
  toEngine = [];
  restarts = 0;
  /** @type {{hindrance: number, rank: number, text: string}[]} */
  told = [];

  #rank;
  #roster;
  /** Its place in the ring, and the number of places; both come with each order. */
  #place;
  #world;
  #policy;
  /** @type {"OUT" | "PREPARING" | "PREPARED" | "JOINING" | "JOINED" | "REPLACING"} */
  #joining = "OUT";
  /** @type {Message | null} ENGINE_INFO, while there is an engine */
  #info = null;
  /** @type {Message | null} CANNOT_SERVE, of an engine that cannot read its model */
  #unreadable = null;
  /** @type {Message | null} the head's last BOOTSTRAP */
  #order = null;
  /** @type {Message | null} */
  #grouped = null;
  /** @type {{port: number, relay: number} | null} */
  #way = null;
  #loaded = false;
  #tunnel = false;
  /** The numbers of the steps that the engine has not answered. @type {bigint[]} */
  #working = [];
  /** What each of them weighs. @type {number[]} */
  #weights = [];
  /** ROWs of the epoch since its last STEP, the token ids in their histories, and what they weigh. */
  #rows = { count: 0, ids: 0, weight: 0 };
  #next = 1n;
  /** @type {Failed | null} */
  #failure = null;
  #told = false;
  /** The head begins no epoch before this rank presents itself [EP-15]. */
  #isUnservable = false;

  /**
   * @param {number} rank
   * @param {number} world the number of ranks of the roster
   * @param {{innerSeal: boolean, tensorParallelism: boolean, trusted: boolean, rights?: number[]}} policy the roster's,
   *   what the owner allows, and the rights of each rank, which has TEXT alone where they are left out
   */
  constructor(rank, world, policy) {
    this.#rank = rank;
    this.#roster = world;
    this.#place = rank;
    this.#world = world;
    this.#policy = policy;
  }

  /**
   * A message of the head, or of the rank before on a STEP link.
   *
   * @param {number} purpose
   * @param {Message} message
   */
  receive(purpose, message) {
    if (message.message === "BOOTSTRAP") {
      this.#obey(message);
      return;
    }
    if (message.message === "WAITING") {
      const isOfRoster = (/** @type {{rank: number}} */ { rank }) => rank < this.#roster || rank === NO_RANK;
      must(message.reasons.every(isOfRoster), "a reason of a rank that is not there [EP-13]");
      this.told = message.reasons;
      return;
    }
    if (message.message === "STEP" && !this.#isPresent(message)) return;
    const isOfGroup = isCollective(this.#order);
    must(purpose === (isOfGroup ? PURPOSE.CONTROL : PURPOSE.STEP), "not on this link [RL-02]");
    if (message.message === "STEP") this.#step(message);
    else this.#row(message);
  }

  /** @param {Message} row */
  #row(row) {
    this.#rows.count += 1;
    this.#rows.ids += row.history.length;
    const entries = 1 + row.bias.length + row.ends.length + row.bad.length;
    this.#rows.weight += HISTORY_WEIGHT * row.history.length + ENTRY_WEIGHT * entries + row.grammar.length;
    const { count, ids } = this.#rows;
    must(count <= MAX_ROWS && ids <= MAX_IDS, "more than a step may open [TP-09]", "LIMIT_EXCEEDED");
    if (this.#failure) return;
    must(this.#waiting() <= MAX_WEIGHT_WAITING, "more rows wait than may [TP-09]", "LIMIT_EXCEEDED");
    this.toEngine.push(row);
  }

  /** What waits for the engine weighs this, the ROWs since the last STEP among it. */
  #waiting() {
    return this.#weights.reduce((sum, each) => sum + each, this.#rows.weight);
  }

  /** @param {Message} message of the own engine */
  engineSays(message) {
    switch (message.message) {
      case "ENGINE_INFO":
        this.#info = message;
        this.#unreadable = null;
        if (this.#joining === "REPLACING") this.#joining = "OUT";
        if (this.#order && !this.#isUnservable && !this.#isOutside()) this.#start();
        else this.toHead.push(this.#hello());
        break;
      case "LOADED":
        this.#loaded = true;
        this.#tryPrepared();
        break;
      case "GROUPED":
        this.#grouped = message;
        break;
      case "READY":
        if (this.#joining === "JOINING") this.#joined(message);
        break;
      case "CANNOT_SERVE":
        if (message.instance === 0n) this.#cannotRead(message);
        else if (this.#order && isSameEpoch(message, this.#order)) this.#tell(message.kind, message.reason);
        break;
      case "CHECKED":
        if (this.#order?.checked && isSameEpoch(message, this.#order)) this.toHead.push(message); // [EP-18]
        break;
      case "STEP_DONE":
        this.#done(message);
    }
  }

  /** @param {string} reason why the engine's process is gone */
  engineLost(reason) {
    this.#info = null;
    if (this.#joining === "REPLACING") return;
    this.#joining = "OUT";
    if (this.#order) this.#fail({ rank: this.#place, kind: FAILED.ENGINE_LOST, message: reason }, true);
  }

  /** @param {{port: number, relay: number}} way where the engine and the relay listen */
  open(way) {
    this.#way = way;
    this.#tryPrepared();
  }

  /** The TUNNEL link with the next rank is up. */
  tunnelUp() {
    this.#tunnel = true;
    this.#tryPrepared();
  }

  /** @param {Message} order */
  #obey(order) {
    const held = this.#order;
    if (held && joins(order)) {
      const { hosts, deadline_ms } = order;
      if (this.#joining === "PREPARED" && isDeepStrictEqual(order, { ...held, hosts, deadline_ms })) {
        this.told = []; // [EP-12]
        this.#join(order);
        return;
      }
      const isOut = this.#joining === "OUT" || this.#joining === "REPLACING";
      if (isOut && isCollective(held) && isSameEpoch(order, held)) return; // it crossed the news of that [CO-04]
    }
    const world = isCollective(order) ? order.hosts.length : order.bounds.length - 1;
    const ring = order.members.length > 0 ? order.members : [...Array(world).keys()];
    must(ring[order.rank] === this.#rank && ring[world - 1] < this.#roster, "an order for another [EP-08]");
    must(!held || order.instance !== held.instance || isLater(order, held), "an epoch that is over [EP-07]");
    must(order.inner_seal === this.#policy.innerSeal, "another policy [EP-03]", "POLICY_MISMATCH");
    const rights = ring.map((/** @type {number} */ rank) => this.#policy.rights?.[rank] ?? TEXT);
    must(!rights.some((/** @type {number} */ bits) => bits & WITNESS), "a witness [EP-03]", "POLICY_MISMATCH");
    const mayShow = this.#policy.tensorParallelism && rights.every((/** @type {number} */ bits) => bits & TEXT);
    must(!isCollective(order) || mayShow, "forbidden [EP-03]", "POLICY_MISMATCH");
    must(!order.trusted || this.#policy.trusted, "beside the sealed links [EP-03]", "POLICY_MISMATCH");
    must(order.steps === STEPS, "another step version [EP-21]", "VERSION_MISMATCH");
    must(!joins(order), "to join, unprepared [CO-04]");
    must(!this.#info || this.#info.model.equals(order.model), "another model", "MODEL_MISMATCH");
    const hasNone = order.kept.length > 0 && held?.instance !== order.instance; // of that instance [LG-06]
    this.#order = order;
    this.#place = order.rank;
    this.#world = world;
    this.told = []; // [EP-12]
    this.#working = [];
    this.#weights = [];
    this.#rows = { count: 0, ids: 0, weight: 0 };
    this.#next = 1n;
    this.#failure = null;
    this.#told = false;
    this.#isUnservable = false;
    if (this.#joining !== "OUT" && this.#joining !== "REPLACING") {
      this.#joining = "REPLACING"; // no group outlives its epoch [CO-07]
      this.restarts += 1;
    }
    if (this.#unreadable) this.#tell(this.#unreadable.kind, this.#unreadable.reason);
    else if (hasNone) this.#tell(FAILED.LEDGER, "it has had no order of this head before");
    else if (this.#info && this.#joining === "OUT") this.#start();
  }

  /** Give the engine its part of the order. */
  #start() {
    const order = /** @type {Message} */ (this.#order);
    if (isCollective(order)) {
      this.#joining = "PREPARING";
      this.#loaded = false;
      this.#way = null;
      this.#grouped = null;
      const whole = { ...order, backend: BACKEND.PIPELINE, rank: 0, hosts: [], members: [], trusted: false };
      this.toEngine.push(this.#group(order, []), whole);
    } else {
      this.toEngine.push(order);
    }
  }

  #tryPrepared() {
    const order = /** @type {Message} */ (this.#order);
    if (this.#joining !== "PREPARING" || !this.#loaded || !this.#way) return;
    if (!order.trusted && !this.#tunnel) return;
    this.#joining = "PREPARED";
    const { instance, counter } = order;
    this.toHead.push({ message: "PREPARED", instance, counter, port: this.#way.port });
  }

  /** @param {Message} order */
  #join(order) {
    this.#order = order;
    this.#joining = "JOINING";
    const { port, relay } = /** @type {{port: number, relay: number}} */ (this.#way);
    const hosts = order.trusted ? order.hosts : Array(this.#world).fill(NOWHERE);
    if (!order.trusted) {
      hosts[(this.#place + 1) % this.#world] = { host: LOOPBACK, port: relay };
      hosts[this.#place] = { host: LOOPBACK, port };
    }
    this.toEngine.push(this.#group(order, hosts));
  }

  /** @param {Message} ready */
  #joined(ready) {
    const { sum_us, token_us } = /** @type {Message} */ (this.#grouped);
    this.#joining = "JOINED";
    this.toHead.push({ ...ready, sum_us, token_us });
  }

  /**
   * @param {Message} order
   * @param {any[]} hosts
   */
  #group({ backend, deadline_ms }, hosts) {
    return { message: "GROUP", backend, rank: this.#place, size: this.#world, deadline_ms, hosts };
  }

  /** The ring goes on without this rank [EP-22]. */
  #isOutside() {
    return this.told.some(({ hindrance }) => hindrance === OUTSIDE);
  }

  #hello() {
    const { model, layers, dtype, hidden, room, pins } = /** @type {Message} */ (this.#info);
    return { message: "HELLO", model, layers: layers.length, dtype, hidden, room, oldest: STEPS, newest: STEPS, version: "", pins };
  }

  /**
   * Whether a step is of the present epoch: one that is older, or of another instance, has no effect.
   *
   * @param {Message} step
   */
  #isPresent(step) {
    const order = this.#order;
    must(!order || !isLater(step, order), "an epoch that it was not told of [EP-05]");
    return order !== null && isSameEpoch(step, order);
  }

  /** @param {Message} step */
  #step(step) {
    must(step.n === this.#next, "a gap, or a step again [ST-01]");
    must(step.spent.length <= this.#place, "times of more ranks than are before it [ST-06]");
    this.#next += 1n;
    const announced = this.#rows.weight;
    this.#rows = { count: 0, ids: 0, weight: 0 };
    if (this.#failure) {
      this.#answer(step.n, this.#failure);
    } else {
      this.#working.push(step.n);
      this.#weights.push(weigh(step) + announced);
      const fits = this.#working.length <= MAX_STEPS_WAITING && this.#waiting() <= MAX_WEIGHT_WAITING;
      must(fits, "more steps wait than may [ST-04]", "LIMIT_EXCEEDED");
      this.toEngine.push(step);
    }
  }

  /** @param {Message} done */
  #done(done) {
    if (!this.#order || !isSameEpoch(done, this.#order)) return;
    if (this.#working[0] === done.n && done.failed) this.#fail({ ...done.failed, rank: this.#place }, false);
    else if (this.#working[0] === done.n) {
      this.#working.shift();
      this.#weights.shift();
      this.toHead.push(done);
    }
  }

  /**
   * @param {Failed} failed
   * @param {boolean} isAll the rank cannot go on at all, and says so
   */
  #fail(failed, isAll) {
    this.#failure ??= failed;
    this.#weights = [];
    for (const n of this.#working.splice(0)) this.#answer(n, this.#failure);
    if (isAll) this.#tell(failed.kind, failed.message);
  }

  /**
   * @param {number} kind
   * @param {string} reason
   */
  #tell(kind, reason) {
    const { instance, counter } = /** @type {Message} */ (this.#order);
    if (this.#told) return;
    this.#told = true;
    this.#isUnservable = kind === FAILED.UNSERVABLE;
    this.toHead.push({ message: "CANNOT_SERVE", instance, counter, n: 0n, kind, reason });
  }

  /** @param {Message} message the engine's, which cannot read its model [EP-14] */
  #cannotRead(message) {
    this.#unreadable = message;
    if (this.#order) this.#tell(message.kind, message.reason);
    else this.toHead.push(message);
  }

  /**
   * @param {bigint} n
   * @param {Failed} failed
   */
  #answer(n, failed) {
    const { instance, counter } = /** @type {Message} */ (this.#order);
    this.toHead.push({ message: "STEP_DONE", instance, counter, n, spent: [], ids: [], tensors: [], failed });
  }
}
