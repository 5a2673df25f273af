/**
 * How values become bytes and come back (section 2).
 *
 * A `Codec` reads and writes one kind of value. `struct` joins codecs to a message: an object with one property for
 * each field. A list stands in two places, its count among the fixed fields and its entries after them; such a codec
 * is `Counted`, and `struct` reads the entries of all its lists once the fixed part is in, in the order in which the
 * fields are named. Texts, blobs and optional values are lists in this sense: of bytes, or of at most one value.
 *
 * Nothing is reserved for a count that is only declared: it is checked against its limit, and entries are read one
 * by one, so that what is not there is missed at the first of them. u64 are BigInt, bytes are Buffer.
 */

import { Failure, must } from "./failure.js";

/**
 * @template T
 * @typedef {object} Codec
 * @property {(reader: Reader) => T} read
 * @property {(value: T) => Buffer} write
 */

/**
 * @template T
 * @typedef {object} Counted
 * @property {Codec<number>} count
 * @property {(value: T) => number} size how many entries a value has
 * @property {(reader: Reader, count: number) => T} readEntries
 * @property {(value: T) => Buffer} writeEntries
 */

export class Reader {
  #bytes;
  #at = 0;

  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this.#bytes = Buffer.from(bytes);
  }

  /** @param {number} length */
  take(length) {
    must(length <= this.#bytes.length - this.#at, "cut short");
    this.#at += length;
    return this.#bytes.subarray(this.#at - length, this.#at);
  }

  /** All that is left. */
  rest() {
    return this.take(this.#bytes.length - this.#at);
  }

  end() {
    must(this.#at === this.#bytes.length, "bytes left over");
  }
}

/**
 * @template T
 * @param {number} width in bytes
 * @param {(bytes: Buffer) => T} get
 * @param {(bytes: Buffer, value: T) => unknown} put
 * @returns {Codec<T>}
 */
function fixed(width, get, put) {
  return {
    read: (reader) => get(reader.take(width)),
    write(value) {
      const bytes = Buffer.alloc(width);
      put(bytes, value);
      return bytes;
    },
  };
}

export const u8 = fixed(
  1,
  (b) => b.readUInt8(),
  (b, v) => b.writeUInt8(v),
);
export const u16 = fixed(
  2,
  (b) => b.readUInt16BE(),
  (b, v) => b.writeUInt16BE(v),
);
export const u32 = fixed(
  4,
  (b) => b.readUInt32BE(),
  (b, v) => b.writeUInt32BE(v),
);
export const u64 = fixed(
  8,
  (b) => b.readBigUInt64BE(),
  (b, v) => b.writeBigUInt64BE(v),
);
export const f64 = fixed(
  8,
  (b) => b.readDoubleBE(),
  (b, v) => b.writeDoubleBE(v),
);

/**
 * `codec`, of whose values only those that hold a condition are good.
 *
 * @template T
 * @param {Codec<T>} codec
 * @param {(value: T) => boolean} holds
 * @param {string} reason
 * @param {import("./failure.js").FailureClass} [failureClass]
 * @returns {Codec<T>}
 */
export function where(codec, holds, reason, failureClass) {
  return {
    read(reader) {
      const value = codec.read(reader);
      must(holds(value), reason, failureClass);
      return value;
    },
    write: codec.write,
  };
}

/** @type {Codec<boolean>} */
export const bool = {
  read(reader) {
    const byte = u8.read(reader);
    must(byte <= 1, "a bool other than 0 and 1");
    return byte === 1;
  },
  write: (value) => u8.write(Number(value)),
};

/** @param {number} length */
export const bytes = (length) =>
  fixed(
    length,
    (b) => Buffer.from(b),
    (b, /** @type {Uint8Array} */ v) => b.set(v),
  );

/** Bytes to the end of what is read. @type {Codec<Buffer>} */
export const rest = {
  read: (reader) => Buffer.from(reader.rest()),
  write: (value) => value,
};

/**
 * Two values, one after the other.
 *
 * @template A, B
 * @param {Codec<A>} first
 * @param {Codec<B>} second
 * @returns {Codec<[A, B]>}
 */
export const pair = (first, second) => ({
  read: (reader) => [first.read(reader), second.read(reader)],
  write: ([a, b]) => Buffer.concat([first.write(a), second.write(b)]),
});

/**
 * A list: its count, refused beyond `limit`, and its entries.
 *
 * @template T
 * @param {Codec<number>} count
 * @param {number} limit
 * @param {Codec<T>} entry
 * @returns {Counted<T[]>}
 */
export function list(count, limit, entry) {
  return {
    count: where(count, (n) => n <= limit, `more than ${limit}`, "LIMIT_EXCEEDED"),
    size: (values) => values.length,
    readEntries: (reader, n) => Array.from({ length: n }, () => entry.read(reader)),
    writeEntries: (values) => Buffer.concat(values.map(entry.write)),
  };
}

/**
 * A value that a bool announces; null when there is none.
 *
 * @template T
 * @param {Codec<T>} codec
 * @returns {Counted<T | null>}
 */
export function optional(codec) {
  return {
    count: { read: (reader) => Number(bool.read(reader)), write: u8.write },
    size: (value) => (value === null ? 0 : 1),
    readEntries: (reader, n) => (n ? codec.read(reader) : null),
    writeEntries: (value) => (value === null ? Buffer.alloc(0) : codec.write(value)),
  };
}

/**
 * Bytes behind their length.
 *
 * @param {number} limit
 * @param {Codec<number>} length
 * @returns {Counted<Buffer>}
 */
export function blob(limit, length = u32) {
  return {
    count: where(length, (n) => n <= limit, `more than ${limit} bytes`, "LIMIT_EXCEEDED"),
    size: (value) => value.length,
    readEntries: (reader, n) => Buffer.from(reader.take(n)),
    writeEntries: (value) => value,
  };
}

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/;

/** @param {Uint8Array} encoded */
function decodeUtf8(encoded) {
  try {
    return UTF8.decode(encoded);
  } catch {
    throw new Failure("PROTOCOL_ERROR", "not UTF-8");
  }
}

/**
 * A text of at most `limit` bytes.
 *
 * @param {number} limit
 * @returns {Counted<string>}
 */
export function text(limit) {
  return {
    count: where(u16, (n) => n <= limit, `a text of more than ${limit} bytes`, "LIMIT_EXCEEDED"),
    size: (value) => Buffer.byteLength(value),
    readEntries: (reader, n) => decodeUtf8(reader.take(n)),
    writeEntries: (value) => Buffer.from(value),
  };
}

/**
 * A text without characters that hide, or that change how their neighbours look [MS-02].
 *
 * @param {number} limit
 * @returns {Counted<string>}
 */
export function plainText(limit) {
  const any = text(limit);
  return {
    ...any,
    readEntries(reader, n) {
      const value = any.readEntries(reader, n);
      must(!HIDDEN.test(value), "a text that is not plain");
      return value;
    },
  };
}

/**
 * A counted value with nothing between its count and its entries.
 *
 * @template T
 * @param {Counted<T>} counted
 * @returns {Codec<T>}
 */
export function inline(counted) {
  return {
    read: (reader) => counted.readEntries(reader, counted.count.read(reader)),
    write: (value) => Buffer.concat([counted.count.write(counted.size(value)), counted.writeEntries(value)]),
  };
}

/**
 * An object field by field; the entries of its lists follow all the rest.
 *
 * @param {Record<string, Codec<any> | Counted<any>>} fields
 * @param {(value: any) => void} check refuses what no field shows by itself
 * @returns {Codec<any>}
 */
export function struct(fields, check = () => {}) {
  const entries = Object.entries(fields);
  return {
    read(reader) {
      /** @type {Record<string, any>} */
      const value = {};
      for (const [name, codec] of entries) value[name] = ("count" in codec ? codec.count : codec).read(reader);
      for (const [name, codec] of entries) {
        if ("count" in codec) value[name] = codec.readEntries(reader, value[name]);
      }
      check(value);
      return value;
    },
    write(value) {
      const head = entries.map(([name, codec]) =>
        "count" in codec ? codec.count.write(codec.size(value[name])) : codec.write(value[name]),
      );
      const tail = entries.map(([name, codec]) =>
        "count" in codec ? codec.writeEntries(value[name]) : Buffer.alloc(0),
      );
      return Buffer.concat([...head, ...tail]);
    },
  };
}

/**
 * All of `encoded` as one value.
 *
 * @template T
 * @param {Codec<T>} codec
 * @param {Uint8Array} encoded
 */
export function decode(codec, encoded) {
  const reader = new Reader(encoded);
  const value = codec.read(reader);
  reader.end();
  return value;
}
