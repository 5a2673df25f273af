/** Certificates of elections (section 3.4): whom the members have made head since their roster was signed. */

import { must } from "./failure.js";
import { signedPayload, verify } from "./identity.js";
import { MAX_MEMBERS } from "./limits.js";
import { TEXT } from "./roster.js";
import { hash } from "./schedule.js";
import { bytes, decode, inline, list, struct, u16, u64, where } from "./wire.js";

const certificateCodec = struct({
  term: where(u64, (term) => term > 0n, "term 0"),
  head: u16,
  votes: inline(list(u16, MAX_MEMBERS, struct({ voter: u16, signature: bytes(64) }))),
});

/**
 * @param {Buffer} data a certificate
 * @param {import("./roster.js").Roster} roster the roster that it belongs to, which is verified
 * @returns {{term: bigint, head: number, taken: boolean}} the head by its index, and whether by its own vote alone
 */
export function takeCertificate(data, { members, digest }) {
  const { term, head, votes } = decode(certificateCodec, data);
  const voters = votes.map((/** @type {any} */ vote) => vote.voter);
  must(members[head]?.rights === TEXT, "who may not be head");
  must(voters.every((/** @type {number} */ v, /** @type {number} */ i) => i === 0 || voters[i - 1] < v), "out of order");
  must(voters.every((/** @type {number} */ voter) => voter < members.length), "a vote of no member");
  const taken = 2 * voters.length <= members.length;
  must(!taken || (voters.length === 1 && voters[0] === head), "too few votes");
  const ballot = hash(digest, data.subarray(0, 10));
  for (const { voter, signature } of votes) {
    verify(members[voter].public_key, signature, signedPayload("sealring/1", "VOTE", ballot));
  }
  return { term, head, taken };
}
