/**
 * One rank of a two-rank ring on its STEP link: `node live.js CONFIG.json`.
 *
 * Rank 0 dials rank 1 and drives: it reads two rows in (a prefill each), joins them to a group and decodes it until
 * `steps` steps are done; then it closes the link. Rank 1 listens, keeps its own ledger by the steps that come, and
 * computes. In place of layers each rank's part is to double every element, which binary32 does exactly, so that the
 * head can tell whether what it sent went through both inner seals and came back right.
 *
 * CONFIG.json: `scalar`, `roster`, `coordinator` in hex; `suites` in order of preference; `steps`; for rank 0 the `port`
 * of rank 1 on the loopback. Standard output is a line of JSON each for the port that is listened on, and
 * for what was done.
 */

import { randomBytes, randomFillSync } from "node:crypto";
import { readFileSync } from "node:fs";

import { encapsulate } from "./sealring/exchange.js";
import { Failure } from "./sealring/failure.js";
import { initiate, respond } from "./sealring/handshake.js";
import { Identity } from "./sealring/identity.js";
import { InnerOpener, InnerSealer } from "./sealring/inner.js";
import { Ledger } from "./sealring/ledger.js";
import { NO_GROUP } from "./sealring/limits.js";
import { Link } from "./sealring/link.js";
import { WORK } from "./sealring/messages.js";
import { ReplayCache } from "./sealring/replay.js";
import { PURPOSE } from "./sealring/roles.js";
import { readRoster } from "./sealring/roster.js";
import { F32 } from "./sealring/tensor.js";
import { acceptOne, dial } from "./sealring/transport.js";

const HIDDEN = 16;
const PROMPT = 5;
const BOUNDS = [0, 6, 12];
const GROUP = 3;
const UIDS = [7n, 8n];

if (process.argv.length !== 3) {
  console.error("usage: node live.js CONFIG.json");
  process.exit(2);
}
const config = JSON.parse(readFileSync(process.argv[2], "utf8"));
const coordinator = Buffer.from(config.coordinator, "hex");
const roster = readRoster(Buffer.from(config.roster, "hex"), coordinator);
const identity = new Identity(Buffer.from(config.scalar, "hex"));
const rank = roster.rank(identity.id);

const node = {
  identity,
  roster,
  coordinator,
  instance: randomBytes(8).readBigUInt64BE(),
  suites: config.suites,
  seen: new ReplayCache(),
  store: () => {},
  /** @type {import("./sealring/handshake.js").Node["admit"]} */
  admit: (peer, own, purpose) => {
    const isBefore = (peer + 1) % roster.members.length === own;
    return purpose === PURPOSE.STEP && isBefore ? null : "ROLE_VIOLATION";
  },
};

const say = (/** @type {object} */ told) => console.log(JSON.stringify(told));

/** Both inner seals of a link. */
class Hops {
  /** @param {import("./sealring/link.js").Session} session */
  constructor({ suite, outward, inward }) {
    this.sealer = new InnerSealer(suite, outward.activation, roster.cluster);
    this.opener = new InnerOpener(suite, inward.activation, roster.cluster);
  }
}

/**
 * Where a step's tensor belongs on the hop to `boundary`, and its shape.
 *
 * @param {any} step
 * @param {Ledger} ledger after the step
 * @param {number} boundary
 */
function placeOf({ instance, counter, n, work, target, count }, ledger, boundary) {
  const group = work === WORK.DECODE ? Number(target) : NO_GROUP;
  const uids = work === WORK.DECODE ? [...(ledger.groups.get(group)?.keys() ?? [])] : [target];
  const shape = work === WORK.DECODE ? [uids.length, 1, HIDDEN] : [1, count, HIDDEN];
  return { place: { instance, counter, n, group, boundary, uids }, shape };
}

/** @param {Buffer} elements */
function doubled(elements) {
  const result = Buffer.alloc(elements.length);
  for (let at = 0; at < elements.length; at += 4) result.writeFloatLE(2 * elements.readFloatLE(at), at);
  return result;
}

/**
 * Numbers from 0 to 1.
 *
 * @param {number[]} shape
 */
function randomElements(shape) {
  const words = randomFillSync(new Uint32Array(shape.reduce((product, side) => product * side)));
  const elements = Buffer.alloc(4 * words.length);
  words.forEach((word, i) => elements.writeFloatLE(word / 2 ** 32, 4 * i));
  return elements;
}

/**
 * The steps that the head writes: every row is read in, all join, and the group decodes.
 *
 * @param {bigint} instance of the epoch
 */
function* writtenSteps(instance) {
  const nothing = { back: [], save: [], evict: [], drop: [], open: [], join: [], position: 0, count: 0 };
  for (let n = 1; n <= config.steps; n++) {
    const epoch = { message: "STEP", instance, counter: 1n, n: BigInt(n) };
    const uid = UIDS[n - 1];
    const join = n === UIDS.length + 1 ? UIDS.map((uid) => ({ uid, group: GROUP })) : [];
    const work =
      uid === undefined
        ? { join, work: WORK.DECODE, target: BigInt(GROUP) }
        : { open: [{ uid, handle: 0n, keep: 0 }], work: WORK.PREFILL, target: uid, count: PROMPT };
    yield { ...epoch, ...nothing, ...work, spent: [], ids: [], failed: null };
  }
}

/** @param {import("./sealring/transport.js").Connection} connection */
async function lead(connection) {
  const hops = new Hops(await connection.up());
  let ledger = new Ledger();
  let answered = 0;
  for (const step of writtenSteps(node.instance)) {
    ledger = ledger.applied(step);
    const { place, shape } = placeOf(step, ledger, BOUNDS[1]);
    const data = randomElements(shape);
    const tensor = { dtype: F32, sealed: false, counter: 0n, shape, data };
    connection.send({ ...step, digest: ledger.digest(step.n), tensors: [hops.sealer.seal(tensor, place)] });

    const done = await connection.next();
    if (done?.message !== "STEP_DONE" || done.n !== step.n || done.failed) throw new Error(`step ${step.n} failed`);
    for (const answer of done.tensors) {
      const elements = hops.opener.open(answer, { ...place, boundary: BOUNDS[2] });
      if (!elements.equals(doubled(data))) throw new Error(`step ${step.n} came back wrong`);
      answered += 1;
    }
  }
  await connection.close();
  return { steps: config.steps, answered };
}

/** @param {import("./sealring/transport.js").Connection} connection */
async function serve(connection) {
  const hops = new Hops(await connection.up());
  let ledger = new Ledger();
  let steps = 0;
  for (let step = await connection.next(); step; step = await connection.next()) {
    ledger = ledger.after(step);
    const { place, shape } = placeOf(step, ledger, BOUNDS[1]);
    const elements = hops.opener.open(step.tensors[0], place);
    const begin = performance.now();
    const tensor = { dtype: F32, sealed: false, counter: 0n, shape, data: doubled(elements) };
    const spent = [{ compute: Math.round(1000 * (performance.now() - begin)), wait: 0, seal: 0 }];
    const comesBack = step.work === WORK.DECODE || step.work === WORK.SCORED;
    const tensors = comesBack ? [hops.sealer.seal(tensor, { ...place, boundary: BOUNDS[2] })] : [];
    const { instance, counter, n } = step;
    connection.send({ message: "STEP_DONE", instance, counter, n, spent, ids: [], tensors, failed: null });
    steps += 1;
  }
  return { steps };
}

/** Rank 0 dials rank 1. */
async function dialLast() {
  const peer = roster.members[1].node_id;
  return dial("127.0.0.1", config.port, (startMs) => {
    const intent = { peer, purpose: PURPOSE.STEP, entropy: randomBytes(96) };
    return new Link("initiator", node, startMs, (link) => initiate(link, node, intent));
  });
}

/** Rank 1 is dialed by rank 0. */
async function awaitHead() {
  const announce = (/** @type {number} */ port) => say({ port });
  return acceptOne(announce, (startMs) => {
    const random = { entropy: randomBytes(32), encapsulate };
    return new Link("responder", node, startMs, (link) => respond(link, node, random));
  });
}

try {
  const connection = await (rank === 0 ? dialLast() : awaitHead());
  const did = await (rank === 0 ? lead(connection) : serve(connection));
  const { peer, suite } = await connection.up();
  say({ rank, peer: peer.toString("hex"), suite: suite.code, ...did });
} catch (error) {
  if (!(error instanceof Failure || error.syscall)) throw error;
  console.error(`${error.name}: ${error.message}`);
  process.exitCode = 1;
}
