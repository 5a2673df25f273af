/**
 * What each kind of conformance vector asks (../vectors/README.md), put to the implementation in sealring/.
 *
 * A kind gives the attempts of a vector: the same thing done in every way that must come out the same, such as a
 * stream in whole and byte by byte. An attempt notes what comes of it in an `Outcome` and throws the `Failure`, if
 * there is one.
 */

import { createHash } from "node:crypto";
import { isDeepStrictEqual } from "node:util";

import { ToldAddresses } from "./sealring/addresses.js";
import { announceSealed, announceWords, readAnnouncement } from "./sealring/announcement.js";
import { certificateCodec, takeCertificate } from "./sealring/election.js";
import { takeEvidence } from "./sealring/evidence.js";
import * as exchange from "./sealring/exchange.js";
import { Failure, must } from "./sealring/failure.js";
import { FrameReader, SEALED } from "./sealring/frame.js";
import { initiate, respond } from "./sealring/handshake.js";
import { Identity, nodeId, verify } from "./sealring/identity.js";
import { InnerOpener } from "./sealring/inner.js";
import { Invitations, readInvitation, writeInvitation } from "./sealring/invitation.js";
import { answer as answerJoin, ask } from "./sealring/join.js";
import { Ledger } from "./sealring/ledger.js";
import { MAX_SEALED_BODY } from "./sealring/limits.js";
import { Link } from "./sealring/link.js";
import { Lockstep } from "./sealring/lockstep.js";
import { LOCAL, NETWORK, decodeMessage, encodeMessage } from "./sealring/messages.js";
import { Rank } from "./sealring/rank.js";
import { Relay } from "./sealring/relay.js";
import { ReplayCache } from "./sealring/replay.js";
import { maySend } from "./sealring/roles.js";
import { readNewerRoster, readRoster } from "./sealring/roster.js";
import { draw, samplingKey } from "./sealring/sampling.js";
import * as schedule from "./sealring/schedule.js";
import { Opener, Sealer } from "./sealring/seal.js";
import { splitLayers } from "./sealring/split.js";
import { SUITES } from "./sealring/suites.js";
import { decode } from "./sealring/wire.js";

/**
 * @typedef {object} Outcome
 * @property {any} output so far
 * @property {Buffer[]} released plaintext that was given out
 */

/** @typedef {(outcome: Outcome) => void} Attempt */

const hex = (/** @type {string} */ digits) => Buffer.from(digits, "hex");

/**
 * As JSON tells it: bytes in hex, u64 in decimal.
 *
 * @param {any} value
 * @returns {any}
 */
function plain(value) {
  if (typeof value === "bigint") return value.toString();
  if (Buffer.isBuffer(value)) return value.toString("hex");
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, plain(item)]));
}

const bytesOf = (/** @type {Buffer} */ stream) => [...stream].map((byte) => Buffer.of(byte));

/**
 * The ways in which a stream may be cut that are tried: not at all, everywhere, and in two at every place.
 *
 * @param {Buffer} stream
 * @returns {Buffer[][]}
 */
const cuts = (stream) => [
  [stream],
  bytesOf(stream),
  ...bytesOf(stream).map((_, at) => [stream.subarray(0, at), stream.subarray(at)]),
];

/** @param {any} input */
const frames = (input) =>
  cuts(hex(input.stream)).map((pieces) => (/** @type {Outcome} */ outcome) => {
    const reader = new FrameReader();
    outcome.output = { frames: [] };
    for (const piece of pieces) {
      reader.push(piece);
      for (let frame = reader.next(input.limits); frame; frame = reader.next(input.limits)) {
        outcome.output.frames.push({ kind: frame.kind, body: frame.body });
        outcome.released.push(frame.body);
      }
    }
  });

/** At how many lengths, evenly spread, a message that is longer than that is cut off. */
const LENGTHS = 700;

/** @param {import("./sealring/messages.js").Table} table */
const message =
  (table) =>
  /** @param {any} input */
  (input) => {
    const plaintext = Buffer.concat([hex(input.plaintext), Buffer.alloc(input.zeros ?? 0)]);
    const whole = (/** @type {Outcome} */ outcome) => {
      const fields = decodeMessage(plaintext, table);
      outcome.output = { fields };
      if (!encodeMessage(fields, table).equals(plaintext)) throw new Error("its fields give other bytes");
    };
    const cutOff = (/** @type {Outcome} */ outcome) => {
      const fields = decodeMessage(plaintext, table);
      outcome.output = { fields };
      // The data of TUNNEL end where the plaintext does.
      const end = fields.message === "TUNNEL" && fields.data.length > 0 ? plaintext.length - fields.data.length : null;
      const step = 1 + Math.floor(plaintext.length / LENGTHS);
      const lengths = [...plaintext.keys()].slice(0, (end ?? plaintext.length) + 1).filter((n) => n % step === 0);
      const wrong = lengths.map((length) => plaintext.subarray(0, length));
      if (end === null) wrong.push(Buffer.concat([plaintext, Buffer.of(0)]));
      for (const bytes of wrong) {
        if (!isRefused(() => decodeMessage(bytes, table))) throw new Error(`taken with ${bytes.length} bytes`);
      }
    };
    return [whole, cutOff];
  };

/** @param {() => void} act */
function isRefused(act) {
  try {
    act();
    return false;
  } catch (error) {
    if (error instanceof Failure) return true;
    throw error;
  }
}

/** @param {(input: any, outcome: Outcome) => void} attempt */
const once = (attempt) => (/** @type {any} */ input) => [(/** @type {Outcome} */ o) => attempt(input, o)];

/** @param {(input: any) => any} compute */
const formula = (compute) => once((input, outcome) => (outcome.output = compute(input)));

const sign = formula(({ scalar, message }) => {
  const identity = new Identity(hex(scalar));
  return { public_key: identity.publicKey, node_id: identity.id, signature: identity.sign(hex(message)) };
});

const roster = formula(({ roster, coordinator }) => {
  const { signed, policy, appointment, ...told } = /** @type {any} */ (readRoster(hex(roster), hex(coordinator)));
  if (appointment) {
    const { spare, number, coordinator } = appointment;
    told.appointment = { spare, number, coordinator };
  }
  return { ...told, trust: Math.min(...told.members.map((/** @type {any} */ m) => m.trust)) };
});

const newer = formula(({ current, candidate, coordinator, wall_ms, ends }) => {
  const held = readRoster(hex(current), hex(coordinator));
  const roster = readNewerRoster(held, hex(candidate), hex(coordinator), BigInt(wall_ms), ends.map(hex));
  return { serial: roster.serial, digest: roster.digest, mandate: roster.mandate };
});

const certificate = formula(({ certificate, roster, coordinator }) =>
  takeCertificate(decode(certificateCodec, hex(certificate)), readRoster(hex(roster), hex(coordinator))),
);

const evidence = formula(({ evidence, subject, digest, attesters, wall_ms }) =>
  takeEvidence(hex(evidence), {
    subject: hex(subject),
    digest: hex(digest),
    attesters: attesters.map(hex),
    wallMs: BigInt(wall_ms),
  }),
);

const handshakeSecrets = formula(({ suite, ss_kem, ss_x, t2 }) => {
  const prk = schedule.exchangeSecret(SUITES[suite], hex(ss_kem), hex(ss_x));
  return { prk, ...schedule.handshakeKeys(SUITES[suite], prk, hex(t2)) };
});

const transcripts = formula(({ suite, cluster, responder, init, resp, fin }) => {
  const t1 = schedule.firstTranscript(SUITES[suite], hex(cluster), hex(responder), hex(init));
  const t2 = schedule.hash(t1, hex(resp).subarray(0, 1130));
  const t3 = schedule.hash(t1, hex(resp));
  return { t1, t2, t3, t4: schedule.hash(t3, hex(fin)) };
});

const invitation = formula(({ text }) => {
  const read = readInvitation(text);
  return { ...read, text: writeInvitation(read) };
});

const announced = formula(({ words, coordinator, nonce, node_id }) => ({
  text: words ? announceWords(words) : announceSealed(hex(coordinator), hex(nonce), node_id ? hex(node_id) : null),
}));

const announcement = formula(({ text, coordinator, members }) => ({
  who: readAnnouncement(hex(text), hex(coordinator), members.map(hex)),
}));

const joinExchange = formula(({ suite, coordinator, secret, ss_kem, ss_x, init, shares }) => {
  const t1 = schedule.joinTranscript(SUITES[suite], hex(coordinator), hex(init));
  const t2 = schedule.hash(t1, hex(shares));
  const prk = schedule.exchangeSecret(SUITES[suite], hex(ss_kem), hex(ss_x), hex(secret));
  return { t1, t2, prk, ...schedule.handshakeKeys(SUITES[suite], prk, t2) };
});

const linkSecrets = formula(({ suite, prk, direction, sender, receiver, t4 }) =>
  schedule.linkSecrets(SUITES[suite], hex(prk), direction, hex(sender), hex(receiver), hex(t4)),
);

const traffic = formula(({ secret }) => {
  const first = schedule.trafficKeys(hex(secret));
  const second = schedule.trafficKeys(first.next);
  return { keys: [first, second, schedule.trafficKeys(second.next)] };
});

const sealed = once((input, outcome) => {
  const opener = new Opener(SUITES[input.suite], hex(input.secret));
  const reader = new FrameReader();
  outcome.output = { plaintexts: outcome.released };
  for (const bytes of input.frames) {
    reader.push(hex(bytes));
    const frame = reader.next({ [SEALED]: MAX_SEALED_BODY });
    if (!frame) throw new Error("a frame that is not whole");
    outcome.released.push(opener.open(frame));
  }
});

const sealedMany = formula(({ suite, secret, count }) => {
  const sealer = new Sealer(SUITES[suite], hex(secret));
  const all = createHash("sha256");
  for (let i = 0; i < count; i++) all.update(sealer.seal(Buffer.alloc(0)));
  return { frames_sha256: all.digest() };
});

const inner = once((input, outcome) => {
  const opener = new InnerOpener(SUITES[input.suite], hex(input.secret), hex(input.cluster));
  outcome.output = { elements: outcome.released };
  for (const { instance, counter, n, group, boundary, uids, tensor } of input.tensors) {
    const told = { ...tensor, counter: BigInt(tensor.counter), data: hex(tensor.data) };
    const epoch = { instance: BigInt(instance), counter: BigInt(counter), n: BigInt(n) };
    outcome.released.push(opener.open(told, { ...epoch, group, boundary, uids: uids.map(BigInt) }));
  }
});

/** @param {any} input */
const role = ({ purpose, sender, receiver, world, messages }) =>
  messages.map((/** @type {string} */ name) => () => {
    must(maySend(purpose, sender, receiver, world).includes(name), name, "ROLE_VIOLATION");
  });

/** @param {any} input */
const addresses = once(({ sender, receiver, world, seen, plaintexts }, outcome) => {
  const peer = new ToldAddresses(sender, receiver, world);
  for (const plaintext of plaintexts) peer.take(decodeMessage(hex(plaintext), NETWORK), hex(seen));
  const ascending = (/** @type {any} */ a, /** @type {any} */ b) => Buffer.compare(a.ip, b.ip) || a.port - b.port;
  outcome.output = { told: told(peer.told, (pairs) => pairs.toSorted(ascending)) };
});

/** @param {Map<any, any>} map */
const told = (map, tell = (/** @type {any} */ value) => value) =>
  Object.fromEntries([...map].map(([key, value]) => [String(key), tell(value)]));

const ledger = once((input, outcome) => {
  let held = new Ledger(
    input.kept.map((/** @type {any} */ { number, length }) => ({ number: BigInt(number), length })),
  );
  /** @type {Buffer[]} */
  const digests = [];
  const tell = () => {
    const rows = (/** @type {Map<bigint, number>} */ group) =>
      [...group].map(([uid, length]) => ({ uid, length, guessed: held.guessed.get(uid) ?? 0 }));
    const { private: private_, snapshots, groups } = held;
    outcome.output = {
      digests,
      private: told(private_),
      snapshots: told(snapshots),
      groups: told(groups, rows),
    };
  };
  tell();
  for (const step of input.steps) {
    const message = decodeMessage(hex(step));
    try {
      held = held.after(message);
    } catch (error) {
      if (error instanceof Failure) error.name = "LEDGER"; // answered so: the link is not at fault [LG-01]
      throw error;
    }
    digests.push(held.digest(message.n));
    tell();
  }
});

const rank = once((input, outcome) => {
  const policy = {
    innerSeal: input.inner_seal,
    tensorParallelism: input.tensor_parallelism,
    trusted: input.trusted,
    rights: input.rights,
  };
  const machine = new Rank(input.rank, input.world, policy);
  const encoded = (/** @type {import("./sealring/messages.js").Table} */ table) => (/** @type {any} */ said) =>
    encodeMessage(said, table);
  const tell = () => {
    const { toHead, toEngine, restarts, told } = machine;
    outcome.output = { head: toHead.map(encoded(NETWORK)), engine: toEngine.map(encoded(LOCAL)), restarts, told };
  };
  tell();
  for (const { purpose, plaintext, engine, port, relay, tunnel, lost } of input.course) {
    if (plaintext) machine.receive(purpose, decodeMessage(hex(plaintext)));
    if (engine) machine.engineSays(decodeMessage(hex(engine), LOCAL));
    if (port) machine.open({ port, relay });
    if (tunnel) machine.tunnelUp();
    if (lost) machine.engineLost(lost);
    tell();
  }
});

const lockstep = once((input, outcome) => {
  const head = new Lockstep({ instance: BigInt(input.instance), counter: BigInt(input.counter) }, input.world);
  const tell = () => (outcome.output = { over: head.over, failed: head.failed });
  tell();
  for (const { step, rank, answer, wait } of input.course) {
    if (step) head.begin(decodeMessage(hex(step)));
    if (answer) head.answer(rank, decodeMessage(hex(answer)));
    if (wait) head.wait();
    tell();
  }
});

const relay = once((input, outcome) => {
  const end = new Relay(input.asks);
  const tell = () => {
    const encoded = (/** @type {any[]} */ messages) => messages.map((message) => encodeMessage(message, NETWORK));
    outcome.output = { sent: encoded(end.sent), heard: encoded(end.heard), streams: end.streams };
  };
  tell();
  for (const { got, sends, takes, size } of input.course) {
    if (got) end.receive(decodeMessage(hex(got)));
    if (sends) end.send(decodeMessage(hex(sends)));
    if (takes) end.take(BigInt(takes), size);
    tell();
  }
});

const split = formula(({ layers, ends, memory, head, joined }) => ({
  bounds: splitLayers(layers.map(BigInt), BigInt(ends), memory.map(BigInt), BigInt(head), joined),
}));

/**
 * One end of a link.
 *
 * @param {"initiator" | "responder"} end
 */
const linkEnd =
  (end) =>
  /** @param {any} input */
  (input) =>
    [(/** @type {Buffer} */ data) => [data], bytesOf].map((cut) => (/** @type {Outcome} */ outcome) => {
      const coordinator = hex(input.coordinator);
      const seen = new ReplayCache();
      for (const tag of input.seen ?? []) seen.add(hex(tag));
      const node = {
        identity: new Identity(hex(input.scalar)),
        roster: readRoster(hex(input.roster), coordinator),
        coordinator,
        instance: BigInt(input.instance),
        suites: input.suites,
        seen,
        store: () => {},
        admit: () => null,
      };
      const entropy = hex(input.entropy);
      const dial = { peer: hex(input.peer ?? ""), purpose: input.purpose, entropy };
      const encapsulate = () => ({
        ciphertext: hex(input.encapsulation.ciphertext),
        secret: hex(input.encapsulation.secret),
      });
      const link = new Link(end, node, BigInt(input.wall_ms), (self) =>
        end === "initiator" ? initiate(self, node, dial) : respond(self, node, { entropy, encapsulate }),
      );
      deliver(link, input, cut, outcome, () => ({ link: link.session && tellSession(link.session) }));
    });

/**
 * What comes to one end, and what came of it.
 *
 * @param {Link} link
 * @param {any} input
 * @param {(data: Buffer) => Buffer[]} cut
 * @param {Outcome} outcome
 * @param {() => any} tell what the output has beside
 */
function deliver(link, input, cut, outcome, tell) {
  for (const { at, data } of input.deliveries) {
    link.tick(at);
    for (const piece of cut(hex(data))) link.receive(piece, at);
    link.work();
  }
  if (input.end) link.end();
  outcome.released = link.messages.map(({ plaintext }) => plaintext);
  outcome.output = {
    sent: link.told === null ? link.outgoing : link.outgoing.slice(0, -1),
    told: link.told,
    messages: outcome.released,
    closed: link.closed,
    ...tell(),
  };
  if (link.failure) throw link.failure;
}

/** @param {any} input */
function joinerNode(input) {
  const { name, system, memory, build, addresses } = input;
  return {
    identity: new Identity(hex(input.scalar)),
    suites: input.suites,
    newcomer: { name, system, memory: BigInt(memory), build: BigInt(build), addresses },
    invitation: readInvitation(input.invitation),
    store: () => {},
  };
}

/** @param {any} input */
function inviterNode(input) {
  const coordinator = hex(input.coordinator);
  const kept = input.invitations.map((/** @type {any} */ { text, admitted, ...state }) => ({
    ...state,
    invitation: readInvitation(text),
    admitted: admitted && hex(admitted),
  }));
  const invitations = new Invitations(kept);
  for (const tag of input.seen) invitations.seen.add(hex(tag));
  const decision = input.admit && { roster: hex(input.admit.roster), settings: input.admit.settings };
  return {
    identity: new Identity(hex(input.scalar)),
    suites: input.suites,
    roster: readRoster(hex(input.roster), coordinator),
    coordinator,
    invitations,
    decide: () => decision,
  };
}

/**
 * One end of a join.
 *
 * @param {"joiner" | "inviter"} end
 */
const joinEnd =
  (end) =>
  /** @param {any} input */
  (input) =>
    [(/** @type {Buffer} */ data) => [data], bytesOf].map((cut) => (/** @type {Outcome} */ outcome) => {
      const entropy = hex(input.entropy);
      const encapsulate = () => ({
        ciphertext: hex(input.encapsulation.ciphertext),
        secret: hex(input.encapsulation.secret),
      });
      const link = new Link(end, null, BigInt(input.wall_ms), (self) =>
        end === "joiner"
          ? ask(self, joinerNode(input), entropy)
          : answerJoin(self, inviterNode(input), { entropy, encapsulate }),
      );
      deliver(link, input, cut, outcome, () => ({ met: link.met }));
    });

/** @param {import("./sealring/link.js").Session} session */
const tellSession = ({ suite, outward, inward, ...rest }) => ({
  ...rest,
  suite: suite.code,
  send_traffic: outward.traffic,
  receive_traffic: inward.traffic,
  send_activation: outward.activation,
  receive_activation: inward.activation,
});

/** @type {Record<string, (input: any) => Attempt[]>} */
const KINDS = {
  frames,
  message: message(NETWORK),
  "local-message": message(LOCAL),
  sign,
  verify: once((i) => verify(hex(i.public_key), hex(i.signature), hex(i.message))),
  roster,
  newer,
  evidence,
  certificate,
  "admission-key": formula(({ cluster, responder }) => ({
    key: schedule.admissionKey(hex(cluster), hex(responder)),
  })),
  exchange: handshakeSecrets,
  transcripts,
  "link-secrets": linkSecrets,
  traffic,
  invitation,
  "join-key": formula(({ coordinator, secret }) => ({ key: schedule.joinKey(hex(coordinator), hex(secret)) })),
  "join-exchange": joinExchange,
  joiner: joinEnd("joiner"),
  inviter: joinEnd("inviter"),
  initiator: linkEnd("initiator"),
  responder: linkEnd("responder"),
  sealed,
  "sealed-many": sealedMany,
  inner,
  role,
  ledger,
  rank,
  lockstep,
  relay,
  addresses,
  announced,
  announcement,
  split,
  "sampling-key": formula(({ seed, choice, position }) => ({
    key: samplingKey(BigInt(seed), choice, BigInt(position)),
  })),
  draw: formula(({ row, logits, position }) => ({ token: draw(row, logits, BigInt(position)) })),
};

/**
 * The ways in which a vector is run; the first takes it whole.
 *
 * @param {any} vector
 */
export const attempts = (vector) => KINDS[vector.kind](vector.input);

/**
 * What came of one attempt at a vector, as an answer to it (../vectors/README.md).
 *
 * @param {Attempt} attempt
 * @returns {{ result: string, output?: any, released: string, why: string }}
 */
function answer(attempt) {
  /** @type {Outcome} */
  const outcome = { output: undefined, released: [] };
  let result = "valid";
  let why = "";
  try {
    attempt(outcome);
  } catch (error) {
    result = error.name;
    why = error.message;
  }
  const released = schedule.hash(...outcome.released).toString("hex");
  return { result, output: plain(outcome.output), released, why };
}

/**
 * The answer to a vector, taken whole.
 *
 * @param {any} vector
 */
export const answerVector = (vector) => answer(attempts(vector)[0]);

/**
 * What differs between what a vector says and what one attempt at it gave.
 *
 * @param {any} vector
 * @param {Attempt} attempt
 * @returns {string[]}
 */
function differences(vector, attempt) {
  const { result, output, released, why } = answer(attempt);
  if (result !== vector.result) return [`${result} (${why}) and not ${vector.result}`];
  const wrong = [];
  if (vector.output && !isDeepStrictEqual(output, vector.output)) {
    wrong.push(`${JSON.stringify(output)} and not ${JSON.stringify(vector.output)}`);
  }
  if (vector.released && released !== vector.released) wrong.push("other plaintext was given out");
  return wrong;
}

/**
 * What is wrong with the implementation by this vector; nothing if it passes.
 *
 * @param {any} vector
 * @returns {string[]}
 */
export function checkVector(vector) {
  return attempts(vector).flatMap((attempt, i) => differences(vector, attempt).map((wrong) => `attempt ${i + 1}: ${wrong}`));
}
