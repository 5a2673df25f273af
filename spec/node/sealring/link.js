/**
 * One end of a link (sections 4, 7, 10 and 11.1), without socket or clock: bytes and the time go in, frames and
 * messages come out.
 *
 * `receive` takes bytes as they come and `tick` does what is due at a time. What the end has to do by itself (sign,
 * encapsulate, store a roster, admit its peer) waits for `work`, so that whoever drives a link says when. All times
 * are seconds since the connection. A failure is final: it is kept in `failure`, told to a verified peer in one
 * CLOSE, and nothing is acted on after it.
 */

import { CLOSE, Failure, must } from "./failure.js";
import { FrameReader, HANDSHAKE, SEALED } from "./frame.js";
import {
  AEAD_TAG,
  HANDSHAKE_TIMEOUT,
  INIT_TIMEOUT,
  MAX_FIN_BODY,
  MAX_REASON,
  MAX_ELECTED,
  MAX_SEALED_BODY,
  MAX_UNANSWERED_PINGS,
  MIN_FRAME_RATE,
  PINGS_PER_SECOND,
  PING_INTERVAL,
  PING_TIMEOUT,
  JOIN_PATIENCE,
  MAX_ADDRESS,
  MAX_INVITATION_ADDRESSES,
  MAX_NAME,
  MAX_SETTINGS,
  MAX_SYSTEM,
} from "./limits.js";
import { decodeMessage, encodeMessage } from "./messages.js";
import { maySend } from "./roles.js";
import { Opener, Sealer } from "./seal.js";
import { SUITES } from "./suites.js";

const NOTHING = Object.freeze({});
const ANY_MESSAGE = Object.freeze({ [SEALED]: MAX_SEALED_BODY });
const LONGEST_ACCEPT = Object.freeze({ [SEALED]: 45 + MAX_ELECTED + AEAD_TAG });
const LONGEST_CLOSE = Object.freeze({ [SEALED]: 5 + MAX_REASON + AEAD_TAG });

/** @typedef {"initiator" | "responder" | "joiner" | "inviter"} End */

const PROOF_SEALED = 64 + 32 + AEAD_TAG;
const LONGEST_ADDRESSES = 2 + MAX_INVITATION_ADDRESSES * (2 + MAX_ADDRESS);

/**
 * What each state takes (section 4).
 *
 * @type {Readonly<Record<End, Readonly<Record<string, import("./frame.js").Takes>>>>}
 */
const TAKES = Object.freeze({
  initiator: {
    WAIT_RESP: { [HANDSHAKE]: 1_325 },
    WAIT_SIGNATURE: NOTHING,
    WAIT_ACCEPT: LONGEST_ACCEPT,
    WAIT_STORE: ANY_MESSAGE,
    ESTABLISHED: ANY_MESSAGE,
  },
  responder: {
    WAIT_INIT: { [HANDSHAKE]: 1_261 },
    WAIT_ENCAPSULATION: NOTHING,
    WAIT_SIGNATURE: NOTHING,
    WAIT_FIN: { [HANDSHAKE]: MAX_FIN_BODY },
    WAIT_STORE: LONGEST_CLOSE,
    WAIT_ADMIT: LONGEST_CLOSE,
    ESTABLISHED: ANY_MESSAGE,
  },
  joiner: {
    WAIT_RESP: { [HANDSHAKE]: 1_122 + 101 + MAX_ELECTED + PROOF_SEALED },
    WAIT_SIGNATURE: NOTHING,
    WAIT_ADMIT: { [SEALED]: 7 + MAX_ELECTED + MAX_SETTINGS + AEAD_TAG },
    WAIT_STORE: LONGEST_CLOSE,
    JOINED: LONGEST_CLOSE,
  },
  inviter: {
    WAIT_INIT: { [HANDSHAKE]: 1_261 },
    WAIT_ENCAPSULATION: NOTHING,
    WAIT_SIGNATURE: NOTHING,
    WAIT_FIN: { [HANDSHAKE]: 1 + 113 + 2 + MAX_NAME + 2 + MAX_SYSTEM + LONGEST_ADDRESSES + PROOF_SEALED },
    WAIT_DECISION: LONGEST_CLOSE,
    WAIT_JOINED: LONGEST_CLOSE,
    JOINED: LONGEST_CLOSE,
  },
});

/** The states in which an end waits for itself. */
const OWN_WORK = Object.freeze({
  initiator: ["WAIT_SIGNATURE", "WAIT_STORE"],
  responder: ["WAIT_ENCAPSULATION", "WAIT_SIGNATURE", "WAIT_STORE", "WAIT_ADMIT"],
  joiner: ["WAIT_SIGNATURE", "WAIT_STORE"],
  inviter: ["WAIT_ENCAPSULATION", "WAIT_SIGNATURE", "WAIT_DECISION"],
});

const NO_LOAD = Object.freeze({
  steps_received: 0n,
  steps_answered: 0n,
  compute_us: 0n,
  seal_us: 0n,
  rows: 0n,
  memory: 0n,
  cache: 0n,
  starved_us: 0n,
  fetched_bytes: 0n,
  fetch_bytes: 0n,
});

/**
 * A link that is up.
 *
 * @typedef {object} Session
 * @property {import("./suites.js").Suite} suite
 * @property {Buffer} peer node id
 * @property {bigint} instance of the peer
 * @property {number} purpose
 * @property {Buffer} transcript t4
 * @property {{traffic: Buffer, activation: Buffer}} outward secrets of the direction to the peer
 * @property {{traffic: Buffer, activation: Buffer}} inward secrets of the direction from the peer
 */

export class Link {
  /** Whole frames to transmit, in order. @type {Buffer[]} */
  outgoing = [];
  /** What the peer said, PING, PONG and CLOSE left out. @type {{plaintext: Buffer, message: any}[]} */
  messages = [];
  /** @type {Session | null} */
  session = null;
  /** @type {Failure | null} */
  failure = null;
  /** The code of the CLOSE that was sent. @type {number | null} */
  told = null;
  /** The code of the CLOSE that came. @type {number | null} */
  closed = null;
  /** In a join, what is known of the other end and its secrets, once both have proved themselves. @type {any} */
  met = null;

  #state = "START";
  #takes;
  #ownWork;
  #patience;
  #handshake;
  #reader = new FrameReader();
  #now = 0;
  /** @type {Sealer | null} */
  #sealer = null;
  /** @type {Opener | null} */
  #opener = null;
  /** @type {import("./roster.js").Roster | null} */
  #roster = null;
  /** @type {readonly string[]} */
  #peerMaySend = [];
  #heardAt = 0;
  #lastFrameAt = 0;
  /** When the last PING was sent, if not a byte has come since. @type {number | null} */
  #pingedAt = null;
  /** @type {bigint[]} */
  #unanswered = [];
  #echo = 1n;
  #pingTokens = PINGS_PER_SECOND;
  #pingTokensAt = 0;

  /**
   * @param {End} end
   * @param {any} node a `Node` of the handshake; of a join, what its side takes
   * @param {bigint} startMs the wall clock at the connection, in milliseconds
   * @param {(link: Link) => import("./handshake.js").Side} handshake
   */
  constructor(end, node, startMs, handshake) {
    this.node = node;
    this.#takes = TAKES[end];
    this.#ownWork = OWN_WORK[end];
    this.#patience = end === "joiner" || end === "inviter" ? JOIN_PATIENCE : PING_TIMEOUT;
    this.startMs = startMs;
    this.#handshake = handshake(this);
    this.#guard(() => this.#advance());
  }

  get isUp() {
    return this.#state === "ESTABLISHED";
  }

  /** The wall clock now, in milliseconds. */
  get wallMs() {
    return this.startMs + BigInt(Math.round(this.#now * 1000));
  }

  /** Whether nothing is acted on any more. */
  get isOver() {
    return this.#state === "CLOSED" || this.#state === "DEAD";
  }

  /**
   * @param {Uint8Array} bytes
   * @param {number} now
   */
  receive(bytes, now) {
    this.#now = now;
    if (this.isOver || bytes.length === 0) return;
    this.#reader.push(bytes);
    this.#guard(() => this.#read());
    const isQuick = now <= this.#lastFrameAt + this.#patience + this.#reader.declared / MIN_FRAME_RATE;
    if (isQuick || this.met) this.#hear();
  }

  /** Do what the end itself has to do. */
  work() {
    this.#guard(() => {
      while (this.#ownWork.includes(this.#state)) {
        const before = this.#state;
        this.#advance();
        if (this.#state === before) return; // somebody else decides
      }
    });
  }

  /**
   * Do what is due.
   *
   * @param {number} now
   */
  tick(now) {
    this.#now = now;
    if (!this.isOver) this.#guard(() => (this.isUp || this.met ? this.#keepAlive() : this.#hurry()));
  }

  /** The stream has ended: without CLOSE before it that is a loss [LK-01], and nobody is there to be told. */
  end() {
    if (this.isOver) return;
    this.failure = new Failure("PROTOCOL_ERROR", "the stream ended without CLOSE");
    this.#state = "DEAD";
  }

  /** @param {import("./messages.js").Message} message */
  send(message) {
    if (!this.#sealer || this.isOver) throw new TypeError("the link is not up");
    this.transmit(this.#sealer.seal(encodeMessage(message)));
  }

  /**
   * End the link.
   *
   * @param {import("./failure.js").FailureClass | "SHUTDOWN"} why
   */
  close(why = "SHUTDOWN", reason = "") {
    this.send({ message: "CLOSE", why: CLOSE[why], reason });
    this.told = CLOSE[why];
    this.#state = "CLOSED";
  }

  // What the handshake asks of its link.

  /** @param {Buffer} frame */
  transmit(frame) {
    this.outgoing.push(frame);
  }

  /**
   * The peer is verified: from here on frames are sealed.
   *
   * @param {import("./suites.js").Suite} suite
   * @param {Buffer} outward traffic secret
   * @param {Buffer} inward traffic secret
   */
  key(suite, outward, inward) {
    this.#sealer = new Sealer(suite, outward);
    this.#opener = new Opener(suite, inward);
  }

  /**
   * Both ends of a join have proved themselves.
   *
   * @param {any} met what is known of the other end, with the suite's code and both traffic secrets
   * @param {readonly string[]} maySend what may come from it
   */
  meet(met, maySend) {
    if (!this.#sealer) this.key(SUITES[met.suite], met.send, met.receive);
    this.#peerMaySend = maySend;
    this.met = met;
  }

  /** A message of a join is to be given out. @param {any} message */
  give(message) {
    this.messages.push({ plaintext: encodeMessage(message), message });
  }

  /**
   * @param {import("./frame.js").Frame} frame
   * @returns {any} the message in it
   */
  open(frame) {
    return decodeMessage(this.#unseal(frame));
  }

  /** @param {number} why */
  closedWith(why) {
    this.closed = why;
    this.#state = "CLOSED";
  }

  /**
   * The one message that an initiator may send before ACCEPT [HS-29].
   *
   * @param {import("./frame.js").Frame} frame
   */
  takeClose(frame) {
    const message = this.open(frame);
    must(message.message === "CLOSE", "a message before ACCEPT");
    this.closedWith(message.why);
  }

  /**
   * @param {Session} session
   * @param {import("./roster.js").Roster} roster that both ends hold now
   */
  establish(session, roster) {
    const ranks = [roster.rank(session.peer), roster.rank(this.node.identity.id)];
    this.#peerMaySend = maySend(session.purpose, ranks[0], ranks[1], roster.members.length);
    this.#roster = roster;
    this.session = session;
    this.#state = "ESTABLISHED";
  }

  /** @param {import("./frame.js").Frame} frame */
  take(frame) {
    const plaintext = this.#unseal(frame);
    const message = decodeMessage(plaintext);
    must(this.#peerMaySend.includes(message.message), `${message.message} from this peer`, "ROLE_VIOLATION");
    if (message.message === "CLOSE") this.closedWith(message.why);
    else if (message.message === "PING") this.#pong(message.echo);
    else if (message.message === "PONG") must(this.#unanswered.shift() === message.echo, "a PONG to no PING");
    else if (this.met) this.#advance(message);
    else this.messages.push({ plaintext, message });
  }

  /**
   * @param {import("./frame.js").Frame} frame
   * @returns {Buffer}
   */
  #unseal(frame) {
    if (!this.#opener) throw new TypeError("there are no keys yet");
    return this.#opener.open(frame);
  }

  #read() {
    while (!this.isOver) {
      const takes = this.#takes[this.#state];
      must(takes !== NOTHING || this.#reader.waiting === 0, "bytes before an answer", "LIMIT_EXCEEDED");
      const frame = this.#reader.next(takes);
      if (!frame) return;
      this.#lastFrameAt = this.#now;
      if (this.isUp || this.met) this.take(frame);
      else this.#advance(frame);
    }
  }

  /** @param {import("./frame.js").Frame | import("./messages.js").Message} [came] */
  #advance(came) {
    const { value, done } = this.#handshake.next(/** @type {any} */ (came));
    if (!done) this.#state = value;
  }

  #hear() {
    this.#heardAt = this.#now;
    this.#pingedAt = null;
  }

  #hurry() {
    const isShort = this.#state === "WAIT_INIT" && this.#patience !== JOIN_PATIENCE;
    const patience = isShort ? INIT_TIMEOUT : HANDSHAKE_TIMEOUT;
    must(this.#now < patience, "the handshake takes too long", "TIMEOUT");
  }

  #keepAlive() {
    must(!this.#roster?.hasExpired(this.wallMs), "the roster has expired", "ROSTER_EXPIRED");
    if (this.#pingedAt !== null) {
      must(this.#now < this.#pingedAt + this.#patience - PING_INTERVAL, "the peer is silent", "TIMEOUT");
    } else if (this.#now >= this.#heardAt + PING_INTERVAL) {
      this.#ping();
    }
  }

  #ping() {
    must(this.#unanswered.length < MAX_UNANSWERED_PINGS, "too many PINGs without a PONG", "TIMEOUT");
    this.#pingedAt = this.#now;
    this.#unanswered.push(this.#echo);
    this.send({ message: "PING", echo: this.#echo, ...NO_LOAD });
    this.#echo += 1n;
  }

  /** @param {bigint} echo of the PING */
  #pong(echo) {
    const gained = (this.#now - this.#pingTokensAt) * PINGS_PER_SECOND;
    this.#pingTokens = Math.min(PINGS_PER_SECOND, this.#pingTokens + gained);
    this.#pingTokensAt = this.#now;
    must(this.#pingTokens >= 1, "too many PINGs", "LIMIT_EXCEEDED");
    this.#pingTokens -= 1;
    this.send({ message: "PONG", echo, ...NO_LOAD });
  }

  /** @param {() => void} act whose failure ends the link */
  #guard(act) {
    try {
      act();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.failure = error;
      if (this.#sealer) this.close(error.name, error.message);
      this.#state = "DEAD";
    }
  }
}
