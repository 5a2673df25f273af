/** Attestation (section 3.3): an attester's word on how a node key is kept. */

import { must } from "./failure.js";
import { readPublicKey, signedPayload, verify } from "./identity.js";
import { MAX_CLAIMS } from "./limits.js";
import { hash } from "./schedule.js";
import { blob, bytes, decode, inline, struct, u64, u8, where } from "./wire.js";

const SIGNATURE = 64;

const statementCodec = struct(
  {
    version: where(u8, (version) => version === 1, "another version of the statement"),
    kind: where(u8, (kind) => 1 <= kind && kind <= 3, "an unknown kind"),
    subject: bytes(65),
    issued_ms: u64,
    expires_ms: u64,
    attester: bytes(65),
    claims: inline(blob(MAX_CLAIMS)),
    signature: bytes(SIGNATURE),
  },
  ({ subject, attester, issued_ms, expires_ms }) => {
    readPublicKey(subject, "PROTOCOL_ERROR");
    readPublicKey(attester, "PROTOCOL_ERROR");
    must(!subject.equals(attester), "a key that attests itself");
    must(issued_ms < expires_ms, "expires before it is issued");
  },
);

/**
 * @param {Buffer} evidence a statement with its signature
 * @param {{subject: Buffer, digest: Buffer, attesters: Buffer[], wallMs: bigint}} expected the member's key, what the
 *   roster names, whom the verifier trusts, and its clock
 * @returns {{digest: Buffer, trust: number}} the highest trust level that the evidence supports: its kind's number
 */
export function takeEvidence(evidence, { subject, digest, attesters, wallMs }) {
  const statement = decode(statementCodec, evidence);
  const found = hash(evidence.subarray(0, -SIGNATURE));
  const sees = (/** @type {boolean} */ holds, /** @type {string} */ reason) =>
    must(holds, reason, "AUTHENTICATION_FAILED");
  sees(
    attesters.some((key) => key.equals(statement.attester)),
    "an attester that is not trusted",
  );
  verify(statement.attester, statement.signature, signedPayload("sealring/1", "EVIDENCE", found));
  sees(statement.subject.equals(subject), "about another key");
  sees(found.equals(digest), "another statement than the roster names");
  sees(statement.issued_ms <= wallMs && wallMs < statement.expires_ms, "out of its time");
  return { digest: found, trust: statement.kind };
}
