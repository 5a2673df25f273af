/**
 * Rosters (section 3.2): who is in the cluster, in rank order, signed by the coordinator. The signature is checked
 * before anything is read.
 */

import { must } from "./failure.js";
import { nodeId, readPublicKey, signedPayload, verify } from "./identity.js";
import { MAX_ADDRESS, MAX_ADDRESSES, MAX_MEMBERS, MAX_NAME, MAX_ROSTER } from "./limits.js";
import { hash } from "./schedule.js";
import { bytes, decode, inline, list, plainText, struct, u16, u64, u8, where } from "./wire.js";

const SIGNATURE = 64;
const SOFTWARE = 1;

const name = where(inline(plainText(MAX_NAME)), (text) => /[^ ]/.test(text), "a blank name");
const address = where(inline(plainText(MAX_ADDRESS)), (text) => text !== "", "an empty address");
const differ = (/** @type {string[]} */ values) => new Set(values).size === values.length;

const memberCodec = struct(
  {
    public_key: bytes(65),
    trust: where(u8, (level) => level <= 3, "an unknown trust level"),
    attestation: bytes(32),
    name,
    addresses: where(inline(list(u16, MAX_ADDRESSES, address)), differ, "an address twice"),
  },
  ({ public_key, trust, attestation }) => {
    readPublicKey(public_key, "PROTOCOL_ERROR");
    must(trust <= SOFTWARE || !attestation.every((/** @type {number} */ b) => b === 0), "trust without evidence");
  },
);

const rosterCodec = struct(
  {
    version: where(u8, (version) => version === 1, "another version of the roster"),
    cluster: bytes(32),
    name,
    serial: where(u64, (serial) => serial > 0n, "serial 0"),
    issued_ms: u64,
    expires_ms: u64,
    policy: where(u8, (bits) => bits <= 3, "an unknown policy"),
    members: list(u16, MAX_MEMBERS, memberCodec),
  },
  ({ issued_ms, expires_ms, members }) => {
    must(issued_ms < expires_ms, "expires before it is issued");
    must(members.length > 0, "a roster without members");
    must(differ(members.map((/** @type {any} */ m) => m.name)), "a name twice");
    must(differ(members.map((/** @type {any} */ m) => m.public_key.toString("hex"))), "a key twice");
  },
);

/**
 * @typedef {object} Member
 * @property {Buffer} public_key
 * @property {Buffer} node_id
 * @property {number} trust
 * @property {Buffer} attestation
 * @property {string} name
 * @property {string[]} addresses
 */

export class Roster {
  /**
   * @param {Buffer} signed
   * @param {Buffer} digest
   * @param {any} fields
   */
  constructor(signed, digest, fields) {
    this.signed = signed;
    this.digest = digest;
    /** @type {Buffer} */
    this.cluster = fields.cluster;
    /** @type {string} */
    this.name = fields.name;
    /** @type {bigint} */
    this.serial = fields.serial;
    /** @type {bigint} */
    this.issued_ms = fields.issued_ms;
    /** @type {bigint} */
    this.expires_ms = fields.expires_ms;
    this.inner_seal = (fields.policy & 1) !== 0;
    this.tensor_parallelism = (fields.policy & 2) === 0;
    /** @type {Member[]} */
    this.members = fields.members.map((/** @type {any} */ m) => ({ ...m, node_id: nodeId(m.public_key) }));
  }

  /**
   * The trust of the cluster: the least of its members'.
   */
  get trust() {
    return Math.min(...this.members.map((member) => member.trust));
  }

  /**
   * @param {Uint8Array} id
   * @returns {number} -1 for who is no member
   */
  rank(id) {
    return this.members.findIndex((member) => member.node_id.equals(id));
  }

  /**
   * @param {Uint8Array} id
   * @returns {Member}
   */
  member(id) {
    const rank = this.rank(id);
    must(rank >= 0, "no member", "AUTHENTICATION_FAILED");
    return this.members[rank];
  }

  /** @param {bigint} wallMs */
  hasExpired(wallMs) {
    return wallMs >= this.expires_ms;
  }

  /**
   * Whether another roster has the same serial and says something else.
   *
   * @param {{serial: bigint, digest: Buffer}} other
   */
  conflicts({ serial, digest }) {
    return serial === this.serial && !digest.equals(this.digest);
  }
}

/**
 * @param {Buffer} signed
 * @param {Uint8Array} coordinator the key that the owner pinned
 */
export function readRoster(signed, coordinator) {
  must(signed.length <= MAX_ROSTER, "a roster that is too long", "LIMIT_EXCEEDED");
  must(signed.length >= SIGNATURE, "a roster without a signature", "AUTHENTICATION_FAILED");
  const contents = signed.subarray(0, -SIGNATURE);
  const digest = hash(contents);
  verify(coordinator, signed.subarray(-SIGNATURE), signedPayload("sealring/1", "ROSTER", digest));
  const roster = new Roster(signed, digest, decode(rosterCodec, contents));
  must(roster.rank(nodeId(coordinator)) < 0, "the coordinator is a member", "AUTHENTICATION_FAILED");
  return roster;
}

/**
 * A roster that came over a link and is to take the place of `current` [RO-08] to [RO-13].
 *
 * @param {Roster} current
 * @param {Buffer} signed
 * @param {Uint8Array} coordinator
 * @param {bigint} wallMs
 * @param {Uint8Array[]} ends node ids of both ends of the link
 */
export function readNewerRoster(current, signed, coordinator, wallMs, ends) {
  const roster = readRoster(signed, coordinator);
  must(roster.cluster.equals(current.cluster), "another cluster's roster", "AUTHENTICATION_FAILED");
  must(!current.conflicts(roster), "two rosters with one serial", "ROSTER_CONFLICT");
  must(roster.serial > current.serial, "a roster that is not newer");
  must(!roster.hasExpired(wallMs), "a roster that has expired", "ROSTER_EXPIRED");
  for (const end of ends) roster.member(end);
  return roster;
}
