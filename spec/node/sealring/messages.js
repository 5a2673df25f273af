/**
 * The messages of sections 8 and 9 and of appendix A, as the specification's tables lay them out.
 *
 * A message is an object with the specification's field names; `message` is its own name. `NETWORK` and `LOCAL` say
 * which codes travel in a sealed frame, and which between a node and its engine.
 */

import { must } from "./failure.js";
import {
  MAX_ADDRESS,
  MAX_BAD,
  MAX_BIAS,
  MAX_BODY,
  MAX_CLIENT,
  MAX_ENDS,
  MAX_FIELDS,
  MAX_FILE_NAME,
  MAX_GRAMMAR,
  MAX_GUESSED,
  MAX_HEADERS,
  MAX_IDS,
  MAX_KEPT,
  MAX_LAYERS,
  MAX_LEARNT_ADDRESSES,
  MAX_LOGPROBS,
  MAX_METHOD,
  MAX_PIECE,
  MAX_REASON,
  MAX_REASONS,
  MAX_ELECTED,
  MAX_ROWS,
  MAX_SCORES,
  MAX_SETTINGS,
  MAX_SPENT,
  MAX_TARGET,
  MAX_TENSORS,
  MAX_VERSION,
  MAX_WINDOWS,
  MAX_WORLD,
  NO_GROUP,
  STREAM_WINDOW,
} from "./limits.js";
import { dtype, tensor } from "./tensor.js";
import * as wire from "./wire.js";
import { bool, bytes, f64, inline, list, optional, pair, plainText, struct, u16, u32, u64, u8, where } from "./wire.js";

/** @typedef {{message: string} & Record<string, any>} Message */

const epoch = { instance: u64, counter: u64 };
const upTo = (/** @type {number} */ limit) => where(u16, (n) => n <= limit, `more than ${limit}`, "LIMIT_EXCEEDED");
const oneOf = (/** @type {number} */ first, /** @type {number} */ last) =>
  where(u8, (code) => first <= code && code <= last, "an unknown code");
const group = where(u16, (number) => number !== NO_GROUP, "no group has this number");

const load = struct({
  echo: u64,
  steps_received: u64,
  steps_answered: u64,
  compute_us: u64,
  seal_us: u64,
  rows: u64,
  memory: u64,
  cache: u64,
  starved_us: u64,
  fetched_bytes: u64,
  fetch_bytes: u64,
});

const accept = struct({ transcript: bytes(32), serial: u64, roster: wire.blob(MAX_ELECTED) });

const close = struct({ why: u16, reason: plainText(MAX_REASON) });

const pins = list(u16, MAX_LAYERS + 2, u64);
/** @param {string[]} pins @param {number} layers */
const onePinEach = (pins, layers) =>
  must(pins.length === 0 || pins.length === layers + 2, "not a pin of the files, the ends and each layer");

const hello = struct(
  { model: bytes(32), layers: upTo(MAX_LAYERS), dtype, hidden: u32, room: u64, oldest: u16, newest: u16, version: plainText(MAX_VERSION), pins },
  ({ oldest, newest, pins, layers }) => {
    must(1 <= oldest && oldest <= newest, "step versions that do not rise from 1");
    onePinEach(pins, layers);
  },
);

const prepared = struct({ ...epoch, port: where(u16, (port) => port > 0, "no port") });

const ready = struct(
  {
    ...epoch,
    first: u16,
    last: upTo(MAX_LAYERS),
    trimmable: bool,
    room: u64,
    fixed: u64,
    per_token: u64,
    sum_us: u32,
    token_us: u32,
    windows: list(u16, MAX_WINDOWS, struct({ tokens: u32, bytes: u64 })),
  },
  ({ first, last }) => must(first <= last, "layers that end before they begin"),
);

export const BACKEND = Object.freeze({ PIPELINE: 1, RING: 2, JACCL: 3, NCCL: 4 });
const backend = oneOf(BACKEND.PIPELINE, BACKEND.NCCL);
const hosts = list(u16, MAX_WORLD, struct({ host: inline(wire.text(MAX_ADDRESS)), port: u16 }));

const bootstrap = struct(
  {
    ...epoch,
    backend,
    rank: u16,
    inner_seal: bool,
    trusted: bool,
    checked: bool,
    steps: where(u16, (steps) => steps > 0, "no step version"),
    deadline_ms: u32,
    model: bytes(32),
    bounds: list(u16, MAX_WORLD + 1, upTo(MAX_LAYERS)),
    hosts,
    members: list(u16, MAX_WORLD, u16),
    kept: list(u16, MAX_KEPT, struct({ number: u64, length: u32 })),
  },
  ({ backend, bounds, rank, hosts, trusted, members, kept }) => {
    must(
      kept.every((/** @type {any} */ { number, length }, /** @type {number} */ i) =>
        number > (i === 0 ? 0n : kept[i - 1].number) && length > 0),
      "numbers to keep that do not rise from 1, or nothing to keep",
    );
    must(bounds.length >= 2 && bounds[0] === 0, "bounds that do not begin");
    const places = backend === BACKEND.PIPELINE ? bounds.length - 1 : hosts.length;
    if (members.length > 0) {
      must(members.length === places && members[0] === 0, "members that are no ring");
      must(
        members.every((/** @type {number} */ member, /** @type {number} */ i) => i === 0 || members[i - 1] < member),
        "members that do not rise",
      );
      must(members[members.length - 1] >= places, "members that are their places");
    }
    must(
      bounds.every((/** @type {number} */ bound, /** @type {number} */ i) => i === 0 || bounds[i - 1] < bound),
      "bounds that do not rise",
    );
    if (backend === BACKEND.PIPELINE) {
      must(rank < bounds.length - 1, "a rank beyond the last");
      must(hosts.length === 0 && !trusted, "a collective of a pipeline");
      return;
    }
    must(kept.length === 0, "caches that a collective keeps");
    must(bounds.length === 2, "some of the layers");
    must(hosts.length >= 2 && rank < hosts.length, "a rank without a host, or a collective of one");
    const ports = hosts.filter((/** @type {any} */ { port }) => port > 0).length;
    must(ports === 0 || ports === hosts.length, "ports of some");
    must(backend === BACKEND.RING || trusted, "what cannot be sealed");
  },
);

const kind = oneOf(1, 10);
const failure = struct({ rank: u16, kind, message: plainText(MAX_REASON) });
const cannotServe = struct({ ...epoch, n: u64, kind, reason: plainText(MAX_REASON) });

export const WORK = Object.freeze({ NONE: 0, PREFILL: 1, DECODE: 2, SCORED: 3 });

/** @param {{work: number, target: bigint, position: number, count: number}} step */
function checkWork({ work, target, position, count }) {
  if (work === WORK.PREFILL || work === WORK.SCORED) must(count > 0, "a prefill of no tokens");
  else if (work === WORK.DECODE) must(position <= count, "reads more guesses ahead than it has");
  else must(position === 0, "a position without work");
  if (work === WORK.DECODE) {
    must(target < NO_GROUP, "a decode of no group");
    must(count <= MAX_GUESSED, "more guesses than a row may have");
  }
  if (work === WORK.NONE) must(target === 0n && count === 0, "a target or a count without work");
}

const results = {
  spent: list(u8, MAX_SPENT, struct({ compute: u32, wait: u32, seal: u32 })),
  ids: list(u32, MAX_IDS, u32),
  tensors: list(u8, MAX_TENSORS, tensor),
  failed: optional(failure),
};

const step = struct(
  {
    ...epoch,
    n: u64,
    digest: bytes(16),
    back: list(u16, MAX_ROWS, struct({ uid: u64, count: u8 })),
    save: list(u16, MAX_ROWS, struct({ uid: u64, handle: u64 })),
    evict: list(u16, MAX_ROWS, u64),
    drop: list(u16, MAX_ROWS, u64),
    open: list(u16, MAX_ROWS, struct({ uid: u64, handle: u64, keep: u32 })),
    join: list(u16, MAX_ROWS, struct({ uid: u64, group })),
    work: oneOf(WORK.NONE, WORK.SCORED),
    target: u64,
    position: u32,
    count: u32,
    ...results,
  },
  checkWork,
);

const stepDone = struct({ ...epoch, n: u64, ...results }, ({ ids, tensors, failed }) => {
  const held = [ids.length > 0, tensors.length > 0, failed !== null].filter(Boolean);
  must(held.length <= 1, "more than one of ids, tensors and a failure");
});

const F32 = 1;
const fingerprint = where(
  tensor,
  ({ dtype, sealed, shape }) =>
    dtype === F32 && !sealed && shape.length === 4 && shape[0] <= MAX_TENSORS && shape[3] === 3,
  "no fingerprints",
);
const pairOfPrints = where(u8, (n) => n === 2, "not two tensors");

const checked = struct(
  { ...epoch, n: u64, closing: bool, tensors: list(pairOfPrints, MAX_TENSORS, fingerprint) },
  ({ tensors: [received, given] }) =>
    must(received.shape[1] === given.shape[1] && received.shape[2] === given.shape[2], "of other rows"),
);

const engineInfo = struct(
  {
    model: bytes(32),
    dtype,
    hidden: u32,
    vocabulary: u32,
    context: u32,
    trimmable: bool,
    batches: bool,
    splits: u16,
    backends: u8,
    room: u64,
    ends: u64,
    head: u32,
    hop: u32,
    ahead: u8,
    layers: list(u16, MAX_LAYERS, u64),
    joined: list(u16, MAX_LAYERS, u16),
    pins,
    reason: plainText(MAX_REASON),
  },
  ({ layers, joined, pins }) => {
    onePinEach(pins, layers.length);
    const rising = [0, ...joined, layers.length];
    must(joined.length === 0 || rising.every((n, at) => at === 0 || rising[at - 1] < n), "joined layers out of order");
  },
);

const hopKey = struct({ outgoing: bool, suite: u8, cluster: bytes(32), secret: bytes(32) });

const finite = where(f64, Number.isFinite, "not finite");
const share = where(f64, (p) => 0 <= p && p <= 1, "no share");
const NO_LOGPROBS = 255;

const row = struct(
  {
    uid: u64,
    seed: u64,
    choice: u16,
    temperature: where(finite, (t) => t >= 0, "a temperature below 0"),
    top_p: where(share, (p) => p > 0, "nothing left to draw from"),
    top_k: u32,
    min_p: share,
    repetition: where(finite, (penalty) => penalty > 0, "a penalty of 0 or below"),
    presence: finite,
    frequency: finite,
    logprobs: where(u8, (n) => n <= MAX_LOGPROBS || n === NO_LOGPROBS, "too many alternatives"),
    bias: list(u16, MAX_BIAS, pair(u32, finite)),
    generated: u32,
    history: list(u32, MAX_IDS, u32),
    least: u32,
    ends: list(u16, MAX_ENDS, u32),
    bad: list(u16, MAX_BAD, struct({ token: u32, last: bool })),
    grammar: wire.blob(MAX_GRAMMAR),
  },
  ({ generated, history, bad }) => {
    must(generated <= history.length, "more generated than there is");
    must(bad.length === 0 || bad.at(-1).last, "a bad sequence without an end");
  },
);

const logprobs = struct({ n: u64, uid: u64, chosen: f64, alternatives: list(u8, MAX_LOGPROBS, pair(u32, f64)) });

const scores = struct(
  {
    n: u64,
    uid: u64,
    position: where(u32, (position) => position > 0, "a score of the first token"),
    scores: list(u16, MAX_SCORES, pair(f64, u32)),
    likeliest: list(u16, MAX_SCORES * MAX_LOGPROBS, pair(u32, f64)),
  },
  ({ scores, likeliest }) => {
    must(scores.length > 0, "no scores");
    const each = likeliest.length / Math.max(1, scores.length);
    must(Number.isInteger(each) && each <= MAX_LOGPROBS, "other numbers of likeliest tokens");
  },
);
const rowOver = struct({ n: u64, uid: u64, reason: plainText(MAX_REASON) });
const rowReady = struct({ ...epoch, uid: u64, reason: plainText(MAX_REASON) });

const loaded = struct({ read: u64, held: u64, load_us: u64 });

const EVENT = Object.freeze({ DATA: 0, CLOSE: 2 });

const tunnel = struct({ ...epoch, stream: u8, event: oneOf(EVENT.DATA, EVENT.CLOSE), data: wire.rest }, ({ event, data }) =>
  must((event === EVENT.DATA) === data.length > 0, "DATA without data, or data without DATA"),
);

const words = where(inline(plainText(MAX_REASON)), (text) => text !== "", "a reason without words");
const reason = struct({ hindrance: oneOf(1, 10), rank: u16, text: words });
const waiting = struct({ reasons: list(u8, MAX_REASONS, reason) });

const address = struct({ ip: bytes(16), port: where(u16, (port) => port > 0, "no port") });
const addresses = struct({ member: u16, addresses: list(u8, MAX_LEARNT_ADDRESSES, address) });

const get = struct(
  {
    offset: u64,
    length: where(u32, (length) => length <= MAX_PIECE, "a longer piece than may be", "LIMIT_EXCEEDED"),
    name: plainText(MAX_FILE_NAME),
  },
  ({ name }) => must(!/[/\\]/.test(name) && name !== "." && name !== "..", "a name that leads elsewhere"),
);

const piece = struct(
  { size: u64, data: wire.blob(MAX_PIECE), reason: plainText(MAX_REASON) },
  ({ size, data, reason }) => {
    must(reason === "" || (size === 0n && data.length === 0), "a reason beside data");
    must(BigInt(data.length) <= size, "more data than the file has");
  },
);

/** Names and values of header fields, all together within their limit [MS-23]. @type {wire.Counted<any[]>} */
const headers = {
  count: where(u16, (count) => count <= MAX_FIELDS, `more than ${MAX_FIELDS} header fields`, "LIMIT_EXCEEDED"),
  size: (values) => values.length,
  readEntries(reader, count) {
    let room = MAX_HEADERS;
    const string = () => {
      const length = u16.read(reader);
      room -= 2 + length;
      must(room >= 0, "too long header fields", "LIMIT_EXCEEDED");
      return Buffer.from(reader.take(length));
    };
    return Array.from({ length: count }, () => ({ name: string(), value: string() }));
  },
  writeEntries: (values) =>
    Buffer.concat(values.flatMap(({ name, value }) => [u16.write(name.length), name, u16.write(value.length), value])),
};

/** @param {{headers: any[]}} message */
function areFields({ headers }) {
  for (const { name, value } of headers) {
    must(/^[!#$%&'*+.^_`|~0-9a-z-]+$/.test(name.toString("latin1")), "a name that is no token in small letters");
    must(!/[\0\r\n]/.test(value.toString("latin1")), "a value with NUL or a line break");
  }
}

const ask = struct(
  {
    stream: u64,
    method: wire.text(MAX_METHOD),
    target: wire.blob(MAX_TARGET, u16),
    secure: bool,
    client: plainText(MAX_CLIENT),
    headers,
  },
  (message) => {
    must(/^[!#$%&'*+.^_`|~0-9A-Z-]+$/.test(message.method), "a method that is no token in capitals");
    must(/^\/[!-~]*$/.test(message.target.toString("latin1")), "a target that is no path of visible ASCII");
    areFields(message);
  },
);
const status = where(u16, (code) => 200 <= code && code <= 599, "no status of an answer");
const reply = struct({ stream: u64, status, headers }, areFields);
const body = struct({ stream: u64, last: bool, data: wire.blob(MAX_BODY) }, ({ last, data }) =>
  must(last || data.length > 0, "no data, and more to come"),
);
const creditSize = where(u32, (size) => size <= STREAM_WINDOW, "more than a window", "LIMIT_EXCEEDED");
const credit = struct({ stream: u64, size: where(creditSize, (size) => size > 0, "no credit") });
const drop = struct({ stream: u64, reason: plainText(MAX_REASON) });

const candidacy = struct({ term: u64, head: u16 });
const vote = struct({ term: u64, head: u16, signature: bytes(64) });
const noVote = struct({ term: u64, head: u16, latest: u64, why: oneOf(1, 7) });
const renew = struct({ term: u64, count: u64 });
const renewed = struct({ term: u64, count: u64, promised: u64 });

const admit = struct({ roster: wire.blob(MAX_ELECTED), settings: wire.text(MAX_SETTINGS) });

const membership = struct({ backend, rank: u16, size: upTo(MAX_WORLD), deadline_ms: u32, hosts }, (g) => {
  must(g.backend !== BACKEND.PIPELINE && g.rank < g.size, "no such member");
  must(g.hosts.length === 0 || g.hosts.length === g.size, "hosts of some");
});

const grouped = struct({ size: u16, sum_us: u32, token_us: u32 });

/** @typedef {Readonly<Record<number, [name: string, codec: wire.Codec<any>]>>} Table by code */

/** @type {Table} */
const BOTH = {
  0x05: ["PING", load],
  0x06: ["PONG", load],
  0x09: ["BOOTSTRAP", bootstrap],
  0x0a: ["STEP", step],
  0x0b: ["STEP_DONE", stepDone],
  0x0d: ["ROW", row],
  0x10: ["READY", ready],
  0x11: ["CANNOT_SERVE", cannotServe],
  0x14: ["CHECKED", checked],
};

/** @type {Table} */
export const NETWORK = Object.freeze({
  ...BOTH,
  0x04: ["ACCEPT", accept],
  0x07: ["CLOSE", close],
  0x08: ["HELLO", hello],
  0x0c: ["TUNNEL", tunnel],
  0x0e: ["WAITING", waiting],
  0x0f: ["PREPARED", prepared],
  0x12: ["GET", get],
  0x13: ["PIECE", piece],
  0x18: ["ADMIT", admit],
  0x19: ["JOINED", struct({})],
  0x1a: ["ADDRESSES", addresses],
  0x1b: ["ASK", ask],
  0x1c: ["REPLY", reply],
  0x1d: ["BODY", body],
  0x1e: ["CREDIT", credit],
  0x1f: ["DROP", drop],
  0x20: ["CANDIDACY", candidacy],
  0x21: ["VOTE", vote],
  0x22: ["NO_VOTE", noVote],
  0x23: ["RENEW", renew],
  0x24: ["RENEWED", renewed],
});

/** @type {Table} */
export const LOCAL = Object.freeze({
  ...BOTH,
  0x81: ["ENGINE_INFO", engineInfo],
  0x82: ["HOP_KEY", hopKey],
  0x84: ["LOADED", loaded],
  0x85: ["LOGPROBS", logprobs],
  0x86: ["GROUP", membership],
  0x87: ["GROUPED", grouped],
  0x88: ["SCORES", scores],
  0x89: ["ROW_OVER", rowOver],
  0x8a: ["ROW_READY", rowReady],
});

/**
 * @param {Uint8Array} plaintext
 * @param {Table} table
 * @returns {Message}
 */
export function decodeMessage(plaintext, table = NETWORK) {
  must(plaintext.length > 0, "no message at all");
  const entry = table[plaintext[0]];
  must(entry, `code ${plaintext[0]} is no message here`);
  const [message, codec] = entry;
  return { message, ...wire.decode(codec, plaintext.subarray(1)) };
}

/**
 * @param {Message} message
 * @param {Table} table
 */
export function encodeMessage(message, table = NETWORK) {
  for (const [code, [name, codec]] of Object.entries(table)) {
    if (name === message.message) return Buffer.concat([u8.write(Number(code)), codec.write(message)]);
  }
  throw new TypeError(`no message ${message.message}`);
}
