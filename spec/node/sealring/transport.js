/** A link over TCP: the one place here with a socket and a clock. */

import { once } from "node:events";
import { connect, createServer } from "node:net";

import { Failure } from "./failure.js";
import { MAX_UNSENT } from "./limits.js";

const TICK_MS = 50;

/** @typedef {(startMs: bigint) => import("./link.js").Link} MakeLink makes the link's end at the connection */

export class Connection {
  #socket;
  #link;
  #since = performance.now();
  #timer;
  #wake = () => {};

  /**
   * @param {import("node:net").Socket} socket
   * @param {MakeLink} makeLink
   */
  constructor(socket, makeLink) {
    this.#socket = socket;
    this.#link = makeLink(BigInt(Date.now()));
    this.#timer = setInterval(() => this.#drive(() => this.#link.tick(this.#now)), TICK_MS);
    socket.setNoDelay(true);
    socket.on("data", (/** @type {Buffer} */ data) => this.#drive(() => this.#link.receive(data, this.#now)));
    socket.on("end", () => this.#drive(() => this.#link.end()));
    socket.on("error", () => this.#drive(() => this.#link.end()));
    this.#drive(() => {});
  }

  /**
   * The session, once the link is up.
   *
   * @returns {Promise<import("./link.js").Session>}
   */
  async up() {
    await this.#until(() => this.#link.session !== null);
    if (this.#link.session) return this.#link.session;
    throw this.#link.failure ?? new Error(`refused with close code ${this.#link.closed}`);
  }

  /**
   * The next message; null when the peer has closed the link.
   *
   * @returns {Promise<any>}
   */
  async next() {
    await this.#until(() => this.#link.messages.length > 0);
    const [next] = this.#link.messages.splice(0, 1);
    if (next) return next.message;
    if (this.#link.failure) throw this.#link.failure;
    return null;
  }

  /** @param {import("./messages.js").Message} message */
  send(message) {
    this.#drive(() => this.#link.send(message));
  }

  /** Say CLOSE, and wait until the peer has ended its side too. */
  async close() {
    const ended = once(this.#socket, "close");
    this.#drive(() => this.#link.close());
    await ended;
  }

  /** Seconds since the connection. */
  get #now() {
    return (performance.now() - this.#since) / 1000;
  }

  /** @param {() => boolean} holds */
  async #until(holds) {
    while (!holds() && !this.#link.isOver) await new Promise((resolve) => (this.#wake = () => resolve(null)));
  }

  /** @param {() => void} act on the link; what comes of it is sent on */
  #drive(act) {
    act();
    this.#link.work();
    for (const frame of this.#link.outgoing.splice(0)) this.#socket.write(frame);
    if (this.#link.isOver) {
      clearInterval(this.#timer);
      this.#socket.end();
    } else if (this.#socket.writableLength > MAX_UNSENT) {
      this.#socket.destroy(new Failure("LIMIT_EXCEEDED", "the peer does not read"));
    }
    this.#wake();
  }
}

/**
 * @param {string} host
 * @param {number} port
 * @param {MakeLink} makeLink
 */
export async function dial(host, port, makeLink) {
  const socket = connect({ host, port });
  await once(socket, "connect");
  return new Connection(socket, makeLink);
}

/**
 * Take one connection on a free port of the loopback.
 *
 * @param {(port: number) => void} announce
 * @param {MakeLink} makeLink
 */
export async function acceptOne(announce, makeLink) {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  announce(/** @type {import("node:net").AddressInfo} */ (server.address()).port);
  const [socket] = await once(server, "connection");
  server.close();
  return new Connection(socket, makeLink);
}
