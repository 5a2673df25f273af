/**
 * Frames (section 4): eight bytes of header, then a body.
 *
 * A `FrameReader` collects a stream that comes in pieces of any size. What the state of the link takes is an argument
 * of `next`, since the state may change from one frame to the next; a header that does not fit is refused as soon as
 * it is in, so that no more than the longest body the state takes is ever waited for.
 */

import { must } from "./failure.js";
import { FRAME_HEADER } from "./limits.js";
import { u16, u32, u8 } from "./wire.js";

export const HANDSHAKE = 1;
export const SEALED = 2;
export const LOCAL = 3;
const VERSION = 1;

/** @typedef {Readonly<Record<number, number>>} Takes the longest body of each kind that is taken */

/**
 * @typedef {object} Frame
 * @property {number} kind
 * @property {Buffer} bytes the whole frame
 * @property {Buffer} header
 * @property {Buffer} body
 */

/**
 * @param {number} kind
 * @param {number} length of the body
 */
export function frameHeader(kind, length) {
  return Buffer.concat([u8.write(VERSION), u8.write(kind), u16.write(0), u32.write(length)]);
}

export class FrameReader {
  /** @type {Uint8Array[]} */
  #pieces = [];
  #length = 0;
  #wanted = FRAME_HEADER;

  /** Bytes that are in and belong to no frame yet. */
  get waiting() {
    return this.#length;
  }

  /** Bytes of body that the frame under way declares; 0 before its header is in. */
  get declared() {
    return this.#wanted - FRAME_HEADER;
  }

  /** @param {Uint8Array} bytes */
  push(bytes) {
    this.#pieces.push(bytes);
    this.#length += bytes.length;
  }

  /**
   * The next frame; null while it is not there in full.
   *
   * @param {Takes} takes
   * @returns {Frame | null}
   */
  next(takes) {
    if (this.#length < this.#wanted) return null;
    const stream = Buffer.concat(this.#pieces);
    this.#pieces = [stream];
    this.#wanted = FRAME_HEADER + checkHeader(stream, takes);
    if (this.#length < this.#wanted) return null;
    const bytes = stream.subarray(0, this.#wanted);
    this.#pieces = [stream.subarray(this.#wanted)];
    this.#length -= this.#wanted;
    this.#wanted = FRAME_HEADER;
    return { kind: bytes[1], bytes, header: bytes.subarray(0, FRAME_HEADER), body: bytes.subarray(FRAME_HEADER) };
  }
}

/**
 * @param {Buffer} stream that begins with a whole header
 * @param {Takes} takes
 * @returns {number} the length of the body
 */
function checkHeader(stream, takes) {
  const [version, kind] = stream;
  const length = stream.readUInt32BE(4);
  must(version === VERSION, "another version of the frame");
  must(stream.readUInt16BE(2) === 0, "a reserved field that is not 0");
  must(kind in takes, "a kind of frame that is out of place");
  const isTooLong = length > takes[kind];
  must(!isTooLong, "a body beyond its limit", "LIMIT_EXCEEDED");
  return length;
}
