/**
 * The handshake (section 5), each side told once from top to bottom.
 *
 * A side is a generator. It yields the name of the state in which it waits (section 4's table) and is resumed with
 * the frame that came. In states where it waits for itself (a signature, an encapsulation, a roster being stored) it
 * is resumed without a frame once that work may be done. Whatever the peer does wrong is thrown as a `Failure`; the
 * link that runs the generator tells the peer of it if there are keys by then, and these come only once the peer is
 * verified, so that strangers get no answer [HS-28].
 */

import { checkEncapsulationKey, kemKeys, x25519 } from "./exchange.js";
import { Failure, must } from "./failure.js";
import { HANDSHAKE, frameHeader } from "./frame.js";
import { signedPayload, verify } from "./identity.js";
import { AEAD_TAG, MAX_CLOCK_SKEW_MS, MAX_ELECTED } from "./limits.js";
import { readNewerRoster } from "./roster.js";
import * as schedule from "./schedule.js";
import { hash, hmac, sameTag } from "./schedule.js";
import { NONCE_0, SUITES, aeadOpen, aeadSeal } from "./suites.js";
import { blob, bool, bytes, decode, inline, struct, u16, u32, u64, u8, where } from "./wire.js";

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./link.js").Link} Link */
/** @typedef {Generator<string, void, Frame>} Side */

/**
 * What a node brings to each of its links.
 *
 * @typedef {object} Node
 * @property {import("./identity.js").Identity} identity
 * @property {import("./roster.js").Roster} roster its own
 * @property {Uint8Array} coordinator the pinned key
 * @property {bigint} instance a random number of this process
 * @property {number[]} suites codes, in order of preference
 * @property {(roster: import("./roster.js").Roster) => void} store keeps a newer roster
 * @property {import("./replay.js").ReplayCache} seen the tags of INITs that it took
 * @property {(peer: number, own: number, purpose: number) => import("./failure.js").FailureClass | null} admit
 *   why it does not take a link from that rank, if it does not
 */

const INIT = 0x01;
const RESP = 0x02;
const FIN = 0x03;

const SIGNATURE = 64;
const MAC = 32;
export const proof = { signature: bytes(SIGNATURE), mac: bytes(MAC) };

export const initCodec = struct({ wall_ms: u64, suites: u32, x: bytes(32), ek: bytes(1184), tag: bytes(32) });
const respCodec = struct({ suite: u8, x: bytes(32), ct: bytes(1088), sealed: bytes(91 + SIGNATURE + MAC + AEAD_TAG) });
const mandate = struct({ term: u64, head: u16, taken: bool });
const respClaim = { id_R: bytes(32), instance: u64, serial: u64, digest: bytes(32), mandate };
const finClaim = {
  id_I: bytes(32),
  id_R: bytes(32),
  instance: u64,
  serial: u64,
  digest: bytes(32),
  mandate,
  purpose: where(u8, (code) => 1 <= code && code <= 5, "an unknown purpose"),
  roster: inline(blob(MAX_ELECTED)),
};

const NO_ROSTER = Buffer.alloc(0);
export const UNSEALED_OF_RESP = 1130;

export const denied = (/** @type {unknown} */ holds, /** @type {string} */ reason) =>
  must(holds, reason, "AUTHENTICATION_FAILED");

/**
 * @param {number} code
 * @param {Buffer} fields
 */
export const handshakeFrame = (code, fields) =>
  Buffer.concat([frameHeader(HANDSHAKE, 1 + fields.length), u8.write(code), fields]);

/**
 * @param {Frame} frame
 * @param {number} code
 * @returns {Buffer} what follows the code
 */
export function bodyOf(frame, code) {
  must(frame.body[0] === code, "another code than is due");
  return frame.body.subarray(1);
}

/**
 * A claim with its signature and MAC behind it.
 *
 * @param {import("./identity.js").Identity} identity
 * @param {string} protocol
 * @param {"RESP" | "FIN" | "JOIN-RESP" | "JOIN-FIN"} context
 * @param {Uint8Array} macKey
 * @param {Uint8Array} transcript
 * @param {Buffer} claim
 */
export function prove(identity, protocol, context, macKey, transcript, claim) {
  const signature = identity.sign(signedPayload(protocol, context, hash(transcript, claim)));
  return Buffer.concat([claim, signature, hmac(macKey, hash(transcript, claim, signature))]);
}

/**
 * @param {Uint8Array} publicKey
 * @param {string} protocol
 * @param {"RESP" | "FIN" | "JOIN-RESP" | "JOIN-FIN"} context
 * @param {Uint8Array} macKey
 * @param {Uint8Array} transcript
 * @param {Buffer} proven a claim, its signature and its MAC
 */
export function checkProof(publicKey, protocol, context, macKey, transcript, proven) {
  const claim = proven.subarray(0, -SIGNATURE - MAC);
  const signature = proven.subarray(-SIGNATURE - MAC, -MAC);
  verify(publicKey, signature, signedPayload(protocol, context, hash(transcript, claim)));
  denied(sameTag(proven.subarray(-MAC), hmac(macKey, hash(transcript, claim, signature))), "a wrong MAC");
}

/**
 * The initiator (5.2 to 5.5).
 *
 * @param {Link} link
 * @param {Node} node
 * @param {{peer: Buffer, purpose: number, entropy: Buffer}} dial entropy: an X25519 key, then an ML-KEM seed
 * @returns {Side}
 */
export function* initiate(link, node, { peer, purpose, entropy }) {
  const { identity, roster, coordinator } = node;
  const responder = roster.member(peer).public_key;
  const x = x25519(entropy.subarray(0, 32));
  const kem = kemKeys(entropy.subarray(32));
  const suites = node.suites.reduce((set, code) => set | (1 << code), 0);
  const wallMs = link.startMs - (link.startMs % 10_000n); // it goes in the clear
  const hello = { wall_ms: wallMs, suites, x: x.publicKey, ek: kem.publicKey, tag: Buffer.alloc(32) };
  const init = handshakeFrame(INIT, initCodec.write(hello));
  hmac(schedule.admissionKey(roster.cluster, responder), init.subarray(0, -32)).copy(init, init.length - 32);
  link.transmit(init);

  const resp = yield "WAIT_RESP";
  const answer = decode(respCodec, bodyOf(resp, RESP));
  must(node.suites.includes(answer.suite), "a suite that was not offered");
  const suite = SUITES[answer.suite];
  const t1 = schedule.firstTranscript(suite, roster.cluster, responder, init);
  const t2 = hash(t1, resp.bytes.subarray(0, UNSEALED_OF_RESP));
  const prk = schedule.exchangeSecret(suite, kem.decapsulate(answer.ct), x.agree(answer.x));
  const { kR, mR, kI, mI } = schedule.handshakeKeys(suite, prk, t2);
  const opened = aeadOpen(suite, kR, NONCE_0, t2, answer.sealed);
  checkProof(responder, suite.protocol, "RESP", mR, t2, opened);
  const theirs = decode(struct({ ...respClaim, ...proof }), opened);
  denied(theirs.id_R.equals(peer), "another node than was dialed");
  must(!roster.conflicts(theirs), "two rosters with one serial", "ROSTER_CONFLICT");
  const behind = roster.isBehind(theirs);
  must(theirs.serial > roster.serial || !roster.hasExpired(link.startMs), "the own roster has expired", "ROSTER_EXPIRED");

  yield "WAIT_SIGNATURE";
  const t3 = hash(t1, resp.bytes);
  const claim = struct(finClaim).write({
    id_I: identity.id,
    id_R: peer,
    instance: node.instance,
    serial: roster.serial,
    digest: roster.digest,
    mandate: roster.mandate,
    purpose,
    roster: roster.isAhead(theirs) ? roster.signed : NO_ROSTER,
  });
  const proven = prove(identity, suite.protocol, "FIN", mI, t3, claim);
  const hdr = Buffer.concat([frameHeader(HANDSHAKE, 1 + proven.length + AEAD_TAG), u8.write(FIN)]);
  const fin = Buffer.concat([hdr, aeadSeal(suite, kI, NONCE_0, Buffer.concat([t3, hdr]), proven)]);
  link.transmit(fin);
  const t4 = hash(t3, fin);
  const outward = schedule.linkSecrets(suite, prk, schedule.TO_RESPONDER, identity.id, peer, t4);
  const inward = schedule.linkSecrets(suite, prk, schedule.TO_INITIATOR, peer, identity.id, t4);
  link.key(suite, outward.traffic, inward.traffic);

  const accept = link.open(yield "WAIT_ACCEPT");
  if (accept.message === "CLOSE") return link.closedWith(accept.why);
  must(accept.message === "ACCEPT", "a message before ACCEPT");
  denied(accept.transcript.equals(t4), "ACCEPT of another handshake");
  must(accept.serial === (theirs.serial > roster.serial ? theirs.serial : roster.serial), "ACCEPT names a roster that neither holds");
  const waiting = [];
  let common = roster;
  if (behind) {
    common = readNewerRoster(roster, accept.roster, coordinator, link.startMs, [identity.id, peer]);
    must(common.is(theirs), "another roster than RESP announced");
    for (let frame = yield "WAIT_STORE"; frame; frame = yield "WAIT_STORE") waiting.push(frame);
    node.store(common);
  } else {
    must(accept.roster.length === 0, "ACCEPT brings a roster that is not newer");
  }
  link.establish({ suite, peer, instance: theirs.instance, purpose, transcript: t4, outward, inward }, common);
  for (const frame of waiting) link.take(frame);
}

/**
 * The responder (5.2 to 5.5).
 *
 * @param {Link} link
 * @param {Node} node
 * @param {{entropy: Buffer, encapsulate: typeof import("./exchange.js").encapsulate}} random entropy: an X25519 key
 * @returns {Side}
 */
export function* respond(link, node, { entropy, encapsulate }) {
  const { identity, roster, coordinator } = node;

  const init = yield "WAIT_INIT";
  const hello = decode(initCodec, bodyOf(init, INIT));
  const tag = hmac(schedule.admissionKey(roster.cluster, identity.publicKey), init.bytes.subarray(0, -32));
  denied(sameTag(tag, hello.tag), "a wrong tag");
  const skew = hello.wall_ms - link.startMs;
  denied(-MAX_CLOCK_SKEW_MS <= skew && skew <= MAX_CLOCK_SKEW_MS, "a clock that is too far off");
  denied(node.seen.add(tag), "an INIT again");
  const code = node.suites.find((own) => (hello.suites >>> own) & 1);
  if (code === undefined) throw new Failure("PROTOCOL_ERROR", "no suite in common");
  const suite = SUITES[code];
  checkEncapsulationKey(hello.ek);
  const x = x25519(entropy);
  const x25519Secret = x.agree(hello.x);

  yield "WAIT_ENCAPSULATION";
  const { ciphertext, secret } = encapsulate(hello.ek);

  yield "WAIT_SIGNATURE";
  const sealedLength = 91 + SIGNATURE + MAC + AEAD_TAG;
  const answer = { suite: code, x: x.publicKey, ct: ciphertext, sealed: Buffer.alloc(sealedLength) };
  const resp = handshakeFrame(RESP, respCodec.write(answer));
  const t1 = schedule.firstTranscript(suite, roster.cluster, identity.publicKey, init.bytes);
  const t2 = hash(t1, resp.subarray(0, UNSEALED_OF_RESP));
  const prk = schedule.exchangeSecret(suite, secret, x25519Secret);
  const { kR, mR, kI, mI } = schedule.handshakeKeys(suite, prk, t2);
  const claim = struct(respClaim).write({
    id_R: identity.id,
    instance: node.instance,
    serial: roster.serial,
    digest: roster.digest,
    mandate: roster.mandate,
  });
  const proven = prove(identity, suite.protocol, "RESP", mR, t2, claim);
  aeadSeal(suite, kR, NONCE_0, t2, proven).copy(resp, UNSEALED_OF_RESP);
  link.transmit(resp);

  const fin = yield "WAIT_FIN";
  const t3 = hash(t1, resp);
  const hdr = fin.bytes.subarray(0, 9);
  const opened = aeadOpen(suite, kI, NONCE_0, Buffer.concat([t3, hdr]), bodyOf(fin, FIN));
  const theirs = decode(struct({ ...finClaim, ...proof }), opened);
  denied(theirs.id_R.equals(identity.id), "meant for another node");
  denied(!theirs.id_I.equals(identity.id), "a node that dials itself");
  const ahead = roster.isBehind(theirs);
  must(ahead === theirs.roster.length > 0, "a roster where none is due, or none where one is");
  let common = roster;
  if (ahead) {
    common = readNewerRoster(roster, theirs.roster, coordinator, link.startMs, [theirs.id_I, identity.id]);
    must(common.is(theirs), "another roster than FIN names");
  }
  const rank = common.rank(theirs.id_I);
  const claimed = rank < 0 ? identity.publicKey : common.members[rank].public_key;
  checkProof(claimed, suite.protocol, "FIN", mI, t3, opened);
  denied(rank >= 0, "no member");

  const t4 = hash(t3, fin.bytes);
  const outward = schedule.linkSecrets(suite, prk, schedule.TO_INITIATOR, identity.id, theirs.id_I, t4);
  const inward = schedule.linkSecrets(suite, prk, schedule.TO_RESPONDER, theirs.id_I, identity.id, t4);
  link.key(suite, outward.traffic, inward.traffic);
  must(!roster.conflicts(theirs), "two rosters with one serial", "ROSTER_CONFLICT");
  must(theirs.serial > roster.serial || !roster.hasExpired(link.startMs), "the own roster has expired", "ROSTER_EXPIRED");

  if (ahead) {
    const early = yield "WAIT_STORE";
    if (early) return link.takeClose(early);
    node.store(common);
  }
  const early = yield "WAIT_ADMIT";
  if (early) return link.takeClose(early);
  const refusal = node.admit(rank, common.rank(identity.id), theirs.purpose);
  if (refusal) return link.close(refusal);
  const brought = roster.isAhead(theirs) ? roster.signed : NO_ROSTER;
  link.send({ message: "ACCEPT", transcript: t4, serial: common.serial, roster: brought });
  const { id_I: peer, instance, purpose } = theirs;
  link.establish({ suite, peer, instance, purpose, transcript: t4, outward, inward }, common);
}
