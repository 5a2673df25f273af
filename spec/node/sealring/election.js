/** Certificates of elections (section 3.4): whom the members have made head since their roster was signed. */

import { must } from "./failure.js";
import { signedPayload, verify } from "./identity.js";
import { MAX_MEMBERS } from "./limits.js";
import { hash } from "./schedule.js";
import { bytes, inline, list, struct, u16, u64 } from "./wire.js";

/** @typedef {{term: bigint, head: number, taken: boolean}} Mandate the head by its index */

export const UNELECTED = Object.freeze({ term: 0n, head: 0, taken: false });

export const certificateCodec = struct({
  term: u64,
  head: u16,
  votes: inline(list(u16, MAX_MEMBERS, struct({ voter: u16, signature: bytes(64) }))),
});

/**
 * Whether whoever holds `other` obeys `mandate` [EL-05].
 *
 * @param {Mandate} mandate
 * @param {Mandate} other
 */
export function beats(mandate, other) {
  if (mandate.term !== other.term) return mandate.term > other.term;
  if (mandate.taken !== other.taken) return other.taken;
  return mandate.head < other.head;
}

/**
 * @param {any} certificate
 * @param {import("./roster.js").Roster} roster the roster that it belongs to, which is verified, and nobody elected
 * @returns {Mandate}
 */
export function takeCertificate({ term, head, votes }, roster) {
  const { members, digest } = roster;
  const voters = votes.map((/** @type {any} */ vote) => vote.voter);
  must(term > 0n, "term 0");
  must(roster.mayBeHead(head), "who may not be head");
  must(voters.every((/** @type {number} */ v, /** @type {number} */ i) => i === 0 || voters[i - 1] < v), "out of order");
  must(voters.every((/** @type {number} */ voter) => voter < members.length), "a vote of no member");
  const taken = 2 * voters.length <= members.length;
  must(!taken || (voters.length === 1 && voters[0] === head), "too few votes");
  const ballot = hash(digest, u64.write(term), u16.write(head));
  for (const { voter, signature } of votes) {
    verify(members[voter].public_key, signature, signedPayload("sealring/1", "VOTE", ballot));
  }
  return { term, head, taken };
}
