/** The streams of an API link (section 11.14): one end, which asks or answers. */

import { must } from "./failure.js";
import { MAX_STREAMS, STREAM_WINDOW } from "./limits.js";

/** @typedef {import("./messages.js").Message} Message */

/** Table B.10: where each move leads. @type {Readonly<Record<string, Readonly<Record<string, string>>>>} */
const MOVES = Object.freeze({
  ASKED: { REQUEST: "ASKED", REQUEST_END: "AWAITING", REPLY: "ANSWERED", GIVE_UP: "GIVEN_UP", LEAVE: "LEFT" },
  AWAITING: { REPLY: "ANSWERING", GIVE_UP: "GIVEN_UP_ANSWERING", LEAVE: "LEFT" },
  ANSWERED: {
    REQUEST: "ANSWERED",
    REQUEST_END: "ANSWERING",
    RESPONSE: "ANSWERED",
    RESPONSE_END: "READING_ON",
    GIVE_UP: "GIVEN_UP",
    LEAVE: "LEFT",
  },
  ANSWERING: {
    RESPONSE: "ANSWERING",
    RESPONSE_END: "OVER",
    GIVE_UP: "GIVEN_UP_ANSWERING",
    LEAVE: "LEFT",
  },
  READING_ON: {
    REQUEST: "READING_ON",
    REQUEST_END: "OVER",
    GIVE_UP: "GIVEN_UP_READING_ON",
    LEAVE: "LEFT",
  },
  GIVEN_UP: {
    REQUEST: "GIVEN_UP",
    REQUEST_END: "GIVEN_UP",
    REPLY: "GIVEN_UP",
    RESPONSE: "GIVEN_UP",
    RESPONSE_END: "GIVEN_UP",
    LEAVE: "OVER",
  },
  GIVEN_UP_ANSWERING: {
    REPLY: "GIVEN_UP_ANSWERING",
    RESPONSE: "GIVEN_UP_ANSWERING",
    RESPONSE_END: "OVER",
    LEAVE: "OVER",
  },
  GIVEN_UP_READING_ON: { REQUEST: "GIVEN_UP_READING_ON", REQUEST_END: "OVER", LEAVE: "OVER" },
  LEFT: { GIVE_UP: "OVER" },
});

/** @param {Message} body */
const moveOf = ({ last }, /** @type {string} */ side) => (last ? `${side}_END` : side);

export class Relay {
  /** What this end has sent, in order. @type {Message[]} */
  sent = [];
  /** What came for its owner, in order. @type {Message[]} */
  heard = [];

  #asks;
  #newest = 0n;
  /** Those that are not over. @type {Map<bigint, {state: string, room: number, expected: number, consumed: number}>} */
  #streams = new Map();

  /** @param {boolean} asks */
  constructor(asks) {
    this.#asks = asks;
  }

  get streams() {
    return this.#streams.size;
  }

  /** The owner sends this message. @param {Message} message */
  send(message) {
    if (message.message === "ASK") this.#begin(message.stream);
    const stream = this.#get(message.stream);
    if (message.message === "REPLY") this.#move(message.stream, "REPLY");
    if (message.message === "BODY") {
      stream.room -= message.data.length;
      this.#move(message.stream, moveOf(message, this.#asks ? "REQUEST" : "RESPONSE"));
    }
    if (message.message === "DROP") this.#move(message.stream, "GIVE_UP");
    this.sent.push(message);
  }

  /**
   * The owner has consumed data [RQ-05].
   *
   * @param {bigint} number
   * @param {number} size
   */
  take(number, size) {
    const stream = this.#streams.get(number);
    if (!stream || !this.#isLive(stream)) return;
    stream.consumed += size;
    const more = (this.#asks ? "RESPONSE" : "REQUEST") in MOVES[stream.state];
    if (!more || stream.consumed < STREAM_WINDOW / 2) return;
    stream.expected += stream.consumed;
    this.sent.push({ message: "CREDIT", stream: number, size: stream.consumed });
    stream.consumed = 0;
  }

  /** The peer sent this message. @param {Message} message */
  receive(message) {
    const number = message.stream;
    if (message.message === "ASK") {
      must(!this.#asks && number === this.#newest + 1n, "a stream out of order [RQ-01]");
      this.#begin(number);
      this.heard.push(message);
      return;
    }
    const stream = this.#streams.get(number);
    if (stream || message.message === "REPLY" || message.message === "BODY") {
      this.#hear(message);
      return;
    }
    must(0n < number && number <= this.#newest, "a stream that never began"); // CREDIT or DROP, too late [RQ-04, RQ-06]
  }

  /**
   * @param {{state: string, room: number}} stream
   * @param {Message} message
   */
  #credit(stream, message) {
    if (!this.#isLive(stream)) return;
    stream.room += message.size;
    must(stream.room <= STREAM_WINDOW, "credit for what was not sent [RQ-04]", "LIMIT_EXCEEDED");
    this.heard.push(message);
  }

  /** @param {Message} message of a stream that is not over, or it is refused */
  #hear(message) {
    const stream = this.#get(message.stream);
    if (message.message === "CREDIT") {
      this.#credit(stream, message);
      return;
    }
    if (message.message === "BODY") {
      must(message.data.length <= stream.expected, "data without credit [RQ-04]", "LIMIT_EXCEEDED");
      stream.expected -= message.data.length;
    }
    const live = this.#isLive(stream);
    const body = moveOf(message, this.#asks ? "RESPONSE" : "REQUEST");
    const moves = /** @type {Record<string, string>} */ ({ REPLY: "REPLY", DROP: "LEAVE", BODY: body });
    this.#move(message.stream, moves[message.message]);
    if (live) this.heard.push(message);
  }

  /** @param {bigint} number */
  #begin(number) {
    must(this.#streams.size < MAX_STREAMS, "too many streams [RQ-03]", "LIMIT_EXCEEDED");
    this.#newest = number;
    this.#streams.set(number, { state: "ASKED", room: STREAM_WINDOW, expected: STREAM_WINDOW, consumed: 0 });
  }

  /** @param {bigint} number */
  #get(number) {
    const stream = this.#streams.get(number);
    must(stream, "a stream that is over [RQ-02]");
    return /** @type {NonNullable<typeof stream>} */ (stream);
  }

  /** @param {{state: string}} stream */
  #isLive({ state }) {
    return !state.startsWith("GIVEN_UP") && state !== "LEFT";
  }

  /**
   * @param {bigint} number
   * @param {string} move
   */
  #move(number, move) {
    const stream = this.#get(number);
    const after = MOVES[stream.state][move];
    must(after, `${move} in ${stream.state} [RQ-02]`);
    stream.state = after;
    if (after === "OVER") this.#streams.delete(number);
  }
}
