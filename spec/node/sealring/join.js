/**
 * Joining (section 14), each side told once from top to bottom, as the handshake is: the same states, the same link.
 */

import { checkEncapsulationKey, kemKeys, x25519 } from "./exchange.js";
import { Failure, must } from "./failure.js";
import { HANDSHAKE, frameHeader } from "./frame.js";
import {
  UNSEALED_OF_RESP,
  bodyOf,
  checkProof,
  denied,
  handshakeFrame,
  initCodec,
  proof,
  prove,
} from "./handshake.js";
import { readPublicKey, nodeId } from "./identity.js";
import { addresses, take } from "./invitation.js";
import { AEAD_TAG, INVITATION_SECONDS, MAX_CLOCK_SKEW_MS, MAX_NAME, MAX_ELECTED, MAX_SYSTEM } from "./limits.js";
import { readNewerRoster, readRoster } from "./roster.js";
import * as schedule from "./schedule.js";
import { hash, hmac } from "./schedule.js";
import { NONCE_0, SUITES, aeadOpen, aeadSeal } from "./suites.js";
import { blob, bytes, decode, inline, plainText, rest, struct, u16, u64, u8, where } from "./wire.js";

/** @typedef {import("./handshake.js").Side} Side */
/** @typedef {import("./link.js").Link} Link */

const JOIN_INIT = 0x15;
const JOIN_RESP = 0x16;
const JOIN_FIN = 0x17;
const PROOF_SEALED = 64 + 32 + AEAD_TAG;
const LEAST_RESP = UNSEALED_OF_RESP - 8 + PROOF_SEALED;
const LEAST_FIN = 1 + PROOF_SEALED;

const respCodec = struct({ suite: u8, x: bytes(32), ct: bytes(1088), sealed: rest });
const respClaim = { coordinator: bytes(65), id_H: bytes(32), roster: inline(blob(MAX_ELECTED)) };
const name = where(inline(plainText(MAX_NAME)), (text) => /[^ ]/.test(text), "a blank name of a joiner");
const finClaim = {
  public_key: bytes(65),
  id_H: bytes(32),
  build: u64,
  memory: u64,
  name,
  system: inline(plainText(MAX_SYSTEM)),
  addresses: addresses(u16),
};

const HOUSEKEEPING = ["PING", "PONG", "CLOSE"];

/**
 * The machine that joins.
 *
 * @param {Link} link
 * @param {{identity: import("./identity.js").Identity, suites: number[], newcomer: any,
 *   invitation: import("./invitation.js").Invitation, store: (roster: any, settings: string) => void}} node
 * @param {Buffer} entropy an X25519 key, then an ML-KEM seed
 * @returns {Side}
 */
export function* ask(link, { identity, suites, newcomer, invitation, store }, entropy) {
  const x = x25519(entropy.subarray(0, 32));
  const kem = kemKeys(entropy.subarray(32));
  const offer = suites.reduce((set, code) => set | (1 << code), 0);
  const wallMs = link.startMs - (link.startMs % 10_000n);
  const hello = { wall_ms: wallMs, suites: offer, x: x.publicKey, ek: kem.publicKey, tag: Buffer.alloc(32) };
  const init = handshakeFrame(JOIN_INIT, initCodec.write(hello));
  const key = schedule.joinKey(invitation.coordinator, invitation.secret);
  hmac(key, init.subarray(0, -32)).copy(init, init.length - 32);
  link.transmit(init);

  const resp = yield "WAIT_RESP";
  must(resp.body.length >= LEAST_RESP, "a JOIN_RESP without a proof");
  const answer = decode(respCodec, bodyOf(resp, JOIN_RESP));
  must(suites.includes(answer.suite), "a suite that was not offered");
  const suite = SUITES[answer.suite];
  const t1 = schedule.joinTranscript(suite, invitation.coordinator, init);
  const t2 = hash(t1, resp.bytes.subarray(0, UNSEALED_OF_RESP));
  const x25519Secret = x.agree(answer.x);
  const prk = schedule.exchangeSecret(suite, kem.decapsulate(answer.ct), x25519Secret, invitation.secret);
  const { kR, mR, kI, mI } = schedule.handshakeKeys(suite, prk, t2);
  const opened = aeadOpen(suite, kR, NONCE_0, t2, answer.sealed);
  const theirs = decode(struct({ ...respClaim, ...proof }), opened);
  denied(hash(theirs.coordinator).equals(invitation.coordinator), "another coordinator than the invitation names");
  const roster = readRoster(theirs.roster, theirs.coordinator);
  const member = roster.rank(theirs.id_H);
  denied(member >= 0, "an inviter that is no member");
  const signer = member < 0 ? theirs.coordinator : roster.members[member].public_key;
  checkProof(signer, suite.protocol, "JOIN-RESP", mR, t2, opened);
  must(!roster.hasExpired(link.startMs), "a cluster whose roster has expired", "ROSTER_EXPIRED");

  yield "WAIT_SIGNATURE";
  const t3 = hash(t1, resp.bytes);
  const peer = theirs.id_H;
  const claim = struct(finClaim).write({ ...newcomer, public_key: identity.publicKey, id_H: peer });
  const proven = prove(identity, suite.protocol, "JOIN-FIN", mI, t3, claim);
  const hdr = Buffer.concat([frameHeader(HANDSHAKE, 1 + proven.length + AEAD_TAG), u8.write(JOIN_FIN)]);
  const fin = Buffer.concat([hdr, aeadSeal(suite, kI, NONCE_0, Buffer.concat([t3, hdr]), proven)]);
  link.transmit(fin);
  const t4 = hash(t3, fin);
  const outward = schedule.linkSecrets(suite, prk, schedule.TO_RESPONDER, identity.id, peer, t4).traffic;
  const inward = schedule.linkSecrets(suite, prk, schedule.TO_INITIATOR, peer, identity.id, t4).traffic;
  link.meet({ suite: suite.code, send: outward, receive: inward, inviter: peer, roster: roster.digest }, [
    ...HOUSEKEEPING,
    "ADMIT",
  ]);

  const admit = yield "WAIT_ADMIT";
  const given = /** @type {any} */ (admit);
  const isMember = roster.rank(identity.id) >= 0;
  let joined = roster;
  if (isMember && given.roster.equals(theirs.roster)) {
    must(!roster.hasExpired(link.wallMs), "a roster that has expired meanwhile", "ROSTER_EXPIRED");
  } else {
    joined = readNewerRoster(roster, given.roster, theirs.coordinator, link.wallMs, [identity.id, peer]);
  }
  link.give(given);
  const early = yield "WAIT_STORE";
  must(!early, "ADMIT again");
  store(joined, given.settings);
  link.send({ message: "JOINED" });
  for (;;) {
    const more = yield "JOINED";
    must(!more, "ADMIT again");
  }
}

/**
 * The member that gave the invitation.
 *
 * @param {Link} link
 * @param {{identity: import("./identity.js").Identity, suites: number[], roster: import("./roster.js").Roster,
 *   coordinator: Buffer, invitations: import("./invitation.js").Invitations,
 *   decide: (newcomer: any) => {roster: Buffer, settings: string} | null}} node `decide` says null while nobody has
 * @param {{entropy: Buffer, encapsulate: typeof import("./exchange.js").encapsulate}} random entropy: an X25519 key
 * @returns {Side}
 */
export function* answer(link, node, { entropy, encapsulate }) {
  const { identity, roster, coordinator, invitations } = node;

  const init = yield "WAIT_INIT";
  const hello = decode(initCodec, bodyOf(init, JOIN_INIT));
  const kept = invitations.find(init.bytes.subarray(0, -32), hello.tag);
  if (!kept) throw new Failure("AUTHENTICATION_FAILED", "no such invitation");
  const forgotten = BigInt(kept.invitation.expires_s + INVITATION_SECONDS) * 1000n;
  denied(link.startMs < forgotten, "an invitation that expired long ago");
  denied(invitations.seen.add(hello.tag), "a JOIN_INIT again");
  const { invitation } = kept;
  const code = node.suites.find((own) => (hello.suites >>> own) & 1);
  if (code === undefined) throw new Failure("PROTOCOL_ERROR", "no suite in common");
  const suite = SUITES[code];
  checkEncapsulationKey(hello.ek);
  const x = x25519(entropy);
  const x25519Secret = x.agree(hello.x);

  yield "WAIT_ENCAPSULATION";
  const { ciphertext, secret } = encapsulate(hello.ek);

  yield "WAIT_SIGNATURE";
  const claim = struct(respClaim).write({ coordinator, id_H: identity.id, roster: roster.signed });
  const sealed = Buffer.alloc(claim.length + PROOF_SEALED);
  const resp = handshakeFrame(JOIN_RESP, respCodec.write({ suite: code, x: x.publicKey, ct: ciphertext, sealed }));
  const t1 = schedule.joinTranscript(suite, invitation.coordinator, init.bytes);
  const t2 = hash(t1, resp.subarray(0, UNSEALED_OF_RESP));
  const prk = schedule.exchangeSecret(suite, secret, x25519Secret, invitation.secret);
  const { kR, mR, kI, mI } = schedule.handshakeKeys(suite, prk, t2);
  const proven = prove(identity, suite.protocol, "JOIN-RESP", mR, t2, claim);
  aeadSeal(suite, kR, NONCE_0, t2, proven).copy(resp, UNSEALED_OF_RESP);
  link.transmit(resp);

  const fin = yield "WAIT_FIN";
  must(fin.body.length >= LEAST_FIN, "a JOIN_FIN without a proof");
  const t3 = hash(t1, resp);
  const hdr = fin.bytes.subarray(0, 9);
  const opened = aeadOpen(suite, kI, NONCE_0, Buffer.concat([t3, hdr]), bodyOf(fin, JOIN_FIN));
  const theirs = decode(struct({ ...finClaim, ...proof }), opened);
  readPublicKey(theirs.public_key, "PROTOCOL_ERROR");
  denied(theirs.id_H.equals(identity.id), "a JOIN_FIN for another node");
  checkProof(theirs.public_key, suite.protocol, "JOIN-FIN", mI, t3, opened);

  const t4 = hash(t3, fin.bytes);
  const peer = nodeId(theirs.public_key);
  const outward = schedule.linkSecrets(suite, prk, schedule.TO_INITIATOR, identity.id, peer, t4).traffic;
  const inward = schedule.linkSecrets(suite, prk, schedule.TO_RESPONDER, peer, identity.id, t4).traffic;
  link.key(suite, outward, inward);
  const skew = hello.wall_ms - link.startMs;
  must(!peer.equals(identity.id), "the inviter's own key", "REFUSED");
  must(-MAX_CLOCK_SKEW_MS <= skew && skew <= MAX_CLOCK_SKEW_MS, "clocks that are too far apart", "REFUSED");
  take(kept, peer, link.wallMs);
  const { id_H, signature, mac, ...newcomer } = theirs;
  const known = { suite: suite.code, send: outward, receive: inward, ...newcomer, skew_ms: Number(skew) };
  link.meet(known, [...HOUSEKEEPING, "JOINED"]);

  let decision = null;
  while (!decision) {
    const early = yield "WAIT_DECISION";
    must(!early, "JOINED before ADMIT");
    decision = node.decide(newcomer);
  }
  link.send({ message: "ADMIT", ...decision });
  kept.admitted = peer;
  link.give(/** @type {any} */ (yield "WAIT_JOINED"));
  kept.used = true;
  for (;;) {
    const more = yield "JOINED";
    must(!more, "JOINED again");
  }
}
