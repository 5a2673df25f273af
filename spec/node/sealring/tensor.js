/** Tensors (section 9): dtype, shape and the elements, row-major and little-endian, or their ciphertext and tag. */

import { must } from "./failure.js";
import { AEAD_TAG, MAX_DIMENSIONS, MAX_TENSOR_BYTES } from "./limits.js";
import { bool, list, u32, u64, u8, where } from "./wire.js";

/**
 * @typedef {object} Tensor
 * @property {number} dtype
 * @property {boolean} sealed
 * @property {bigint} counter of the inner seal; 0 when not sealed
 * @property {number[]} shape
 * @property {Buffer} data
 */

/**
 * The width of an element by dtype.
 *
 * @type {Readonly<Record<number, number>>}
 */
const WIDTHS = Object.freeze({ 1: 4, 2: 2, 3: 2, 4: 4 });

export const F32 = 1;

export const dtype = where(u8, (code) => code in WIDTHS, "an unknown dtype");

const shape = list(u8, MAX_DIMENSIONS, u32);
const zero = where(u8, (byte) => byte === 0, "a reserved byte that is not 0");

/** @type {import("./wire.js").Codec<Tensor>} */
export const tensor = {
  read(reader) {
    const head = { dtype: dtype.read(reader), sealed: bool.read(reader) };
    const dimensions = shape.count.read(reader);
    zero.read(reader);
    const counter = u64.read(reader);
    must(head.sealed || counter === 0n, "a counter on a tensor that is not sealed");
    const sides = shape.readEntries(reader, dimensions);
    const length = sides.reduce((product, side) => product * side, WIDTHS[head.dtype]);
    const isTooLong = length > MAX_TENSOR_BYTES;
    must(!isTooLong, "too many elements", "LIMIT_EXCEEDED");
    const data = Buffer.from(reader.take(length + (head.sealed ? AEAD_TAG : 0)));
    return { ...head, counter, shape: sides, data };
  },
  write: (value) =>
    Buffer.concat([
      u8.write(value.dtype),
      bool.write(value.sealed),
      shape.count.write(value.shape.length),
      zero.write(0),
      u64.write(value.counter),
      shape.writeEntries(value.shape),
      value.data,
    ]),
};
