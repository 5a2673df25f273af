/**
 * Rosters (section 3.2): who is in the cluster, in rank order, signed by the coordinator, which a spare coordinator may
 * have appointed. The signatures are checked before anything else is read. Where the members have elected a head, it
 * comes first (section 3.4).
 */

import { UNELECTED, beats, certificateCodec, takeCertificate } from "./election.js";
import { must } from "./failure.js";
import { nodeId, readPublicKey, signedPayload, verify } from "./identity.js";
import { MAX_ADDRESS, MAX_ADDRESSES, MAX_MEMBERS, MAX_NAME, MAX_ROSTER } from "./limits.js";
import { hash } from "./schedule.js";
import { Reader, bytes, decode, inline, list, plainText, struct, u16, u64, u8, where } from "./wire.js";

const SIGNATURE = 64;
const SOFTWARE = 1;
const WITH_SPARE = 2;
const ELECTED = 3;
const SERIALS = 10n ** 9n;

const name = where(inline(plainText(MAX_NAME)), (text) => /[^ ]/.test(text), "a blank name");
const address = where(inline(plainText(MAX_ADDRESS)), (text) => text !== "", "an empty address");
const differ = (/** @type {string[]} */ values) => new Set(values).size === values.length;

export const TEXT = 1;
export const WITNESS = 2;
const SAYS_RIGHTS = 4;
const FIXED_HEAD = 8;

/** @param {Record<string, any>} rights the field, or none */
const memberCodec = (rights) => struct(
  {
    public_key: bytes(65),
    trust: where(u8, (level) => level <= 3, "an unknown trust level"),
    ...rights,
    attestation: bytes(32),
    name,
    addresses: where(inline(list(u16, MAX_ADDRESSES, address)), differ, "an address twice"),
  },
  ({ public_key, trust, attestation }) => {
    readPublicKey(public_key, "PROTOCOL_ERROR");
    must(trust <= SOFTWARE || !attestation.every((/** @type {number} */ b) => b === 0), "trust without evidence");
  },
);

const appointmentCodec = struct({
  spare: bytes(65),
  naming: bytes(SIGNATURE),
  number: u64,
  coordinator: bytes(65),
  signature: bytes(SIGNATURE),
});

const headCodec = struct({
  version: where(u8, (version) => version === 1 || version === WITH_SPARE, "another version of the roster"),
  cluster: bytes(32),
});

const rightsCodec = where(u8, (bits) => bits <= (TEXT | WITNESS), "an unknown right");

const termsCodec = struct(
  {
    name,
    serial: where(u64, (serial) => serial > 0n, "serial 0"),
    issued_ms: u64,
    expires_ms: u64,
    policy: where(u8, (bits) => bits <= 15, "an unknown policy"),
  },
  ({ issued_ms, expires_ms }) => must(issued_ms < expires_ms, "expires before it is issued"),
);

/**
 * The members, each with its rights [RO-22] [RO-23].
 *
 * @param {Reader} reader
 * @param {number} policy
 */
function readMembers(reader, policy) {
  const said = (policy & SAYS_RIGHTS) !== 0;
  const read = inline(list(u16, MAX_MEMBERS, memberCodec(said ? { rights: rightsCodec } : {}))).read(reader);
  const members = read.map((/** @type {any} */ member) => ({ rights: TEXT, ...member }));
  must(members.length > 0, "a roster without members");
  must(differ(members.map((/** @type {any} */ m) => m.name)), "a name twice");
  must(differ(members.map((/** @type {any} */ m) => m.public_key.toString("hex"))), "a key twice");
  must(!said || members.some((/** @type {any} */ m) => m.rights !== TEXT), "usual rights, which are said");
  must(members[0].rights === TEXT, "a first member that may not be the head");
  return members;
}

/**
 * @typedef {object} Member
 * @property {Buffer} public_key
 * @property {Buffer} node_id
 * @property {number} trust
 * @property {number} rights
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
    /** @type {{spare: Buffer, number: bigint, coordinator: Buffer} | undefined} */
    this.appointment = fields.appointment;
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
    this.fixed_head = (fields.policy & FIXED_HEAD) !== 0;
    /** @type {import("./election.js").Mandate} */
    this.mandate = UNELECTED;
    /** @type {Member[]} */
    this.members = fields.members.map((/** @type {any} */ m) => ({ ...m, node_id: nodeId(m.public_key) }));
  }

  /**
   * This roster, in which nobody is elected yet, with a head that is [EL-13].
   *
   * @param {import("./election.js").Mandate} mandate
   * @param {Buffer} signed the whole, with the certificate
   */
  elected(mandate, signed) {
    const roster = Object.assign(Object.create(Roster.prototype), this, { mandate, signed });
    const head = this.members[mandate.head];
    roster.members = [head, ...this.members.filter((member) => member !== head)];
    return /** @type {Roster} */ (roster);
  }

  /**
   * Whether the member with an index may be head [EL-02], in a roster in which nobody is elected yet.
   *
   * @param {number} index
   */
  mayBeHead(index) {
    return this.members[index]?.rights === TEXT && (index === 0 || !this.fixed_head);
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

  /**
   * Whether another roster is newer, by what is said of it [RO-11].
   *
   * @param {{serial: bigint, digest: Buffer, mandate: import("./election.js").Mandate}} other
   */
  isBehind({ serial, digest, mandate }) {
    return serial > this.serial || (digest.equals(this.digest) && beats(mandate, this.mandate));
  }

  /**
   * Whether this roster is newer than another, by what is said of that.
   *
   * @param {{serial: bigint, digest: Buffer, mandate: import("./election.js").Mandate}} other
   */
  isAhead({ serial, digest, mandate }) {
    return serial < this.serial || (digest.equals(this.digest) && beats(this.mandate, mandate));
  }

  /**
   * Whether it is the roster that was said.
   *
   * @param {{serial: bigint, digest: Buffer, mandate: import("./election.js").Mandate}} said
   */
  is({ serial, digest, mandate }) {
    const { term, head, taken } = this.mandate;
    const named = term === mandate.term && head === mandate.head && taken === mandate.taken;
    return serial === this.serial && digest.equals(this.digest) && named;
  }
}

/**
 * The chain of signatures from the pinned key to the one that signs the roster [RO-17]; that key.
 *
 * @param {Uint8Array} pinned
 * @param {Buffer} cluster
 * @param {any} appointment
 * @returns {Uint8Array}
 */
function followAppointment(pinned, cluster, { spare, naming, number, coordinator, signature }) {
  const named = hash(Buffer.concat([cluster, spare]));
  verify(pinned, naming, signedPayload("sealring/1", "SPARE", named));
  must(!spare.equals(pinned) && !spare.equals(coordinator), "a spare that is a coordinator", "AUTHENTICATION_FAILED");
  const appointed = hash(Buffer.concat([cluster, u64.write(number), coordinator]));
  verify(spare, signature, signedPayload("sealring/1", "COORDINATOR", appointed));
  return coordinator;
}

/**
 * A roster, with or without a certificate before it [EL-12].
 *
 * @param {Buffer} data
 * @param {Uint8Array} pinned the key that the owner pinned
 */
export function readRoster(data, pinned) {
  if (data[0] !== ELECTED) return readSigned(data, pinned);
  const reader = new Reader(data.subarray(1));
  const certificate = certificateCodec.read(reader);
  const roster = readSigned(reader.rest(), pinned);
  return roster.elected(takeCertificate(certificate, roster), data);
}

/**
 * @param {Buffer} signed
 * @param {Uint8Array} pinned
 */
function readSigned(signed, pinned) {
  must(signed.length <= MAX_ROSTER, "a roster that is too long", "LIMIT_EXCEEDED");
  must(signed.length >= SIGNATURE, "a roster without a signature", "AUTHENTICATION_FAILED");
  const contents = signed.subarray(0, -SIGNATURE);
  const digest = hash(contents);
  const reader = new Reader(contents);
  let [signer, keys, head] = [pinned, [pinned], /** @type {any} */ (undefined)];
  if (contents[0] === WITH_SPARE) {
    must(contents.length >= 1 + 32 + 266, "a roster that does not say who signs it", "AUTHENTICATION_FAILED");
    head = { ...headCodec.read(reader), appointment: appointmentCodec.read(reader) };
    signer = followAppointment(pinned, head.cluster, head.appointment);
    keys = [pinned, head.appointment.spare, signer];
  }
  verify(signer, signed.subarray(-SIGNATURE), signedPayload("sealring/1", "ROSTER", digest));
  head ??= headCodec.read(reader);
  const terms = termsCodec.read(reader);
  const fields = { ...head, ...terms, members: readMembers(reader, terms.policy) };
  reader.end();
  const number = head.appointment?.number;
  must(number === undefined || number === fields.serial / SERIALS, "a serial of another coordinator");
  const roster = new Roster(signed, digest, fields);
  for (const key of keys) must(roster.rank(nodeId(key)) < 0, "a coordinator is a member", "AUTHENTICATION_FAILED");
  return roster;
}

/**
 * What of an appointment has to stay where a roster with another takes its place [RO-19] [RO-20].
 *
 * @param {Roster["appointment"]} held
 * @param {Roster["appointment"]} given
 */
function checkSuccession(held, given) {
  if (!held) return;
  must(!!given?.spare.equals(held.spare), "another spare, or none", "AUTHENTICATION_FAILED");
  const twins = given?.number === held.number && !given.coordinator.equals(held.coordinator);
  must(!twins, "two coordinators with one number", "ROSTER_CONFLICT");
}

/**
 * A roster that came over a link and is to take the place of `current` [RO-08] to [RO-13], [RO-17] to [RO-20].
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
  must(current.isBehind(roster), "a roster that is not newer");
  checkSuccession(current.appointment, roster.appointment);
  must(!roster.hasExpired(wallMs), "a roster that has expired", "ROSTER_EXPIRED");
  for (const end of ends) roster.member(end);
  return roster;
}
