/**
 * Invitations (section 14.2): their one text, and the life of those that an inviter keeps (14.5).
 */

import { must } from "./failure.js";
import { JOIN_REPLAY_CACHE, MAX_ADDRESS, MAX_INVITATION, MAX_INVITATION_ADDRESSES, MAX_TRIES } from "./limits.js";
import { ReplayCache } from "./replay.js";
import { hash, hmac, joinKey, sameTag } from "./schedule.js";
import { bytes, decode, inline, list, plainText, struct, u32, u8, where } from "./wire.js";

const PREFIX = "sr1-";
const ALPHABET = "abcdefghijklmnopqrstuvwxyz234567";
const CHECK = 4;

/** Addresses as invitations and joiners have them. @param {import("./wire.js").Codec<number>} count */
export const addresses = (count) =>
  where(
    where(
      inline(
        list(
          count,
          MAX_INVITATION_ADDRESSES,
          where(inline(plainText(MAX_ADDRESS)), (text) => text !== "", "an empty address of a join"),
        ),
      ),
      (each) => each.length > 0,
      "no address",
    ),
    (each) => new Set(each).size === each.length,
    "an address of a join twice",
  );

const codec = struct({ expires_s: u32, coordinator: bytes(32), secret: bytes(16), addresses: addresses(u8) });

/**
 * @typedef {object} Invitation
 * @property {string[]} addresses
 * @property {Buffer} coordinator
 * @property {Buffer} secret
 * @property {number} expires_s
 */

/** @param {Uint8Array} data */
function toBase32(data) {
  let bits = "";
  for (const byte of data) bits += byte.toString(2).padStart(8, "0");
  return (bits.match(/.{1,5}/g) ?? []).map((five) => ALPHABET[parseInt(five.padEnd(5, "0"), 2)]).join("");
}

/** @param {string} letters of the alphabet */
function fromBase32(letters) {
  const bits = [...letters].map((letter) => ALPHABET.indexOf(letter).toString(2).padStart(5, "0")).join("");
  const whole = bits.length - (bits.length % 8);
  must(bits.length - whole < 5, "a length that base32 does not give");
  must(!bits.slice(whole).includes("1"), "unused bits");
  return Buffer.from((bits.slice(0, whole).match(/.{8}/g) ?? []).map((byte) => parseInt(byte, 2)));
}

/** @param {Invitation} invitation */
export function writeInvitation(invitation) {
  const data = codec.write(invitation);
  return PREFIX + toBase32(Buffer.concat([data, hash(data).subarray(0, CHECK)]));
}

/**
 * @param {string} given
 * @returns {Invitation}
 */
export function readInvitation(given) {
  const text = given.replace(/^[ \t\r\n]+|[ \t\r\n]+$/g, "");
  must(text.length <= MAX_INVITATION, "longer than any invitation", "LIMIT_EXCEEDED");
  const lower = text.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
  must(lower.startsWith(PREFIX), "no invitation");
  const letters = lower.slice(PREFIX.length);
  must(/^[a-z2-7]*$/.test(letters), "a character that no invitation has");
  const data = fromBase32(letters);
  must(data.length >= CHECK, "a text without a check");
  const body = data.subarray(0, -CHECK);
  must(hash(body).subarray(0, CHECK).equals(data.subarray(-CHECK)), "cut off or mistyped");
  return decode(codec, body);
}

/**
 * What an inviter knows of an invitation that it gave.
 *
 * @typedef {object} Kept
 * @property {Invitation} invitation
 * @property {number} tries
 * @property {boolean} busy a machine that asked with it is there
 * @property {boolean} used a machine has joined with it
 * @property {Buffer | null} admitted the node id of the machine that was sent ADMIT
 */

/** The invitations of one inviter. */
export class Invitations {
  /** The tags that it has taken. */
  seen = new ReplayCache(JOIN_REPLAY_CACHE);

  /** @param {Kept[]} kept */
  constructor(kept) {
    this.kept = kept;
  }

  /**
   * That with whose secret a tag was made [JN-07].
   *
   * @param {Uint8Array} tagged
   * @param {Uint8Array} tag
   */
  find(tagged, tag) {
    return this.kept.find(({ invitation: { coordinator, secret } }) =>
      sameTag(hmac(joinKey(coordinator, secret), tagged), tag),
    );
  }
}

/**
 * A machine asks with an invitation: it must be good for it [JN-20], and is its own from then on.
 *
 * @param {Kept} kept
 * @param {Uint8Array} id of the machine
 * @param {bigint} wallMs
 */
export function take(kept, id, wallMs) {
  must(!kept.used, "an invitation that was used", "REFUSED");
  must(kept.admitted === null || kept.admitted.equals(id), "another machine was admitted", "REFUSED");
  must(kept.tries < MAX_TRIES, "an invitation that was tried too often", "REFUSED");
  must(wallMs < 1000n * BigInt(kept.invitation.expires_s), "an invitation that has expired", "REFUSED");
  must(!kept.busy, "another machine is joining", "REFUSED");
  kept.busy = true;
  kept.tries += 1;
}
