/** What is announced by multicast DNS, and who a reader takes it to be of (section 16). */

import { MAX_ANNOUNCEMENT } from "./limits.js";
import { hmac, sameTag } from "./schedule.js";

const RANDOM = 16;
const TAG = 16;
const WORDS = /^[a-z]{3,8}(-[a-z]{3,8}){3}$/;

/**
 * @param {Uint8Array} coordinator the hash of its public key
 * @param {string} sender
 * @param {Uint8Array[]} said
 */
const tagOf = (coordinator, sender, ...said) =>
  hmac(coordinator, Buffer.concat([Buffer.from(`sealring/1 mdns ${sender}`), ...said])).subarray(0, TAG);

/** @param {Uint8Array[]} strings */
const txt = (...strings) => Buffer.concat(strings.flatMap((each) => [Buffer.of(each.length), each]));

const VERSION = Buffer.from("v=1");

/**
 * What a node announces, or without an id a door.
 *
 * @param {Buffer} coordinator
 * @param {Buffer} n
 * @param {Buffer | null} id
 */
export function announceSealed(coordinator, n, id) {
  const t = id ? tagOf(coordinator, "node", n, id) : tagOf(coordinator, "door", n);
  return txt(VERSION, Buffer.concat([Buffer.from("n="), n]), Buffer.concat([Buffer.from("t="), t]));
}

/** What a machine that waits announces. @param {string} words */
export const announceWords = (words) => txt(VERSION, Buffer.from(`w=${words}`));

/** The strings of a TXT record by key [MD-02]. @param {Buffer} text */
function strings(text) {
  /** @type {Map<string, Buffer>} */
  const found = new Map();
  for (let at = 0; at < text.length; at += 1 + text[at]) {
    const string = text.subarray(at + 1, at + 1 + text[at]);
    if (string.length < text[at]) break;
    const equals = string.indexOf("=");
    if (equals < 0) continue;
    const key = string.toString("latin1", 0, equals).replace(/[A-Z]/g, (letter) => letter.toLowerCase());
    if (!found.has(key)) found.set(key, string.subarray(equals + 1));
  }
  return found;
}

/**
 * Who announces itself, for a reader that knows one cluster.
 *
 * @param {Buffer} text a TXT record
 * @param {Buffer} coordinator
 * @param {Buffer[]} members
 */
export function readAnnouncement(text, coordinator, members) {
  if (text.length > MAX_ANNOUNCEMENT) return {};
  const said = strings(text);
  if (said.get("v")?.toString("latin1") !== "1") return {};
  const [n, t, w] = ["n", "t", "w"].map((key) => said.get(key));
  if (n?.length === RANDOM && t?.length === TAG) {
    if (sameTag(tagOf(coordinator, "door", n), t)) return { door: true };
    const member = members.find((id) => sameTag(tagOf(coordinator, "node", n, id), t));
    return member ? { member } : { other: true };
  }
  const words = w?.toString("latin1") ?? "";
  return WORDS.test(words) ? { words } : {};
}
