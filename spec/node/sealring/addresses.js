/** Where members say that they are, and the head that others are (section 11.13). */

import { must } from "./failure.js";
import { ADDRESSES_PER_SECOND } from "./limits.js";

/** @typedef {{ip: Buffer, port: number}} Address */

const AS_SEEN = Buffer.alloc(16);
const IPV4 = Buffer.from("00000000000000000000ffff", "hex");

const isIpv4 = (/** @type {Buffer} */ ip) => ip.subarray(0, 12).equals(IPV4);

/** @param {Buffer} ip */
function leadsElsewhere(ip) {
  const first = isIpv4(ip) ? ip[12] : ip[0];
  return first > 0 && (isIpv4(ip) ? first < 224 && first !== 127 : first < 255);
}

const isLinkLocal = (/** @type {Buffer} */ ip) => ip[0] === 0xfe && (ip[1] & 0xc0) === 0x80;

/** The addresses that one peer has told in the same second. */
export class ToldAddresses {
  /** @type {Map<number, Address[]>} by rank */
  told = new Map();
  #sender;
  #receiver;
  #world;
  #count = 0;

  /**
   * @param {number} sender the peer's rank
   * @param {number} receiver
   * @param {number} world the number of ranks
   */
  constructor(sender, receiver, world) {
    this.#sender = sender;
    this.#receiver = receiver;
    this.#world = world;
  }

  /**
   * @param {import("./messages.js").Message} message ADDRESSES
   * @param {Buffer} seen the ip that the peer's connection comes from
   */
  take({ member, addresses }, seen) {
    this.#count += 1;
    must(this.#count <= ADDRESSES_PER_SECOND, "too many ADDRESSES [AD-02]", "LIMIT_EXCEEDED");
    const own = member === this.#sender;
    must(own || (this.#sender === 0 && member !== this.#receiver), "it speaks for another [AD-01]");
    must(member < this.#world, "a rank that is not there [AD-01]");
    /** @type {Map<string, Address>} */
    const left = new Map();
    for (const { ip, port } of addresses) {
      must(own || !ip.equals(AS_SEEN), "another as it is seen here [AD-01]");
      const at = ip.equals(AS_SEEN) ? seen : ip;
      if (leadsElsewhere(at) && !isLinkLocal(ip)) left.set(`${at.toString("hex")} ${port}`, { ip: at, port });
    }
    this.told.delete(member);
    if (left.size > 0) this.told.set(member, [...left.values()]);
  }
}
