// Conversations in this browser: IndexedDB, within a bound. Where a browser keeps nothing, in this tab's memory.
//
// A conversation stands in `bodies`, and what a list needs of it in `heads`: {id, title, changed, size}.

import { titleOf } from "./conversation.js";

const NAME = "sealring";
export const MOST = 500; // conversations
export const MOST_BYTES = 64 * 2 ** 20;

/** There is no room for more. */
export class Full extends Error {}

export class Store {
  constructor() {
    this.heads = new Map();
    this.memory = null; // bodies, where the browser keeps nothing
    this.why = "";
    this.changed = () => {}; // told the id of what another tab has changed
    this.others = new BroadcastChannel(NAME);
    this.others.addEventListener("message", ({ data }) => this.#renew(String(data)));
    this.opened = this.#open();
  }

  async #open() {
    try {
      const asked = indexedDB.open(NAME, 1);
      asked.addEventListener("upgradeneeded", () => {
        for (const name of ["heads", "bodies"]) asked.result.createObjectStore(name, { keyPath: "id" });
      });
      this.base = await outcome(asked);
      await this.#list();
    } catch (error) {
      this.memory = new Map();
      this.why = error.message;
    }
  }

  async #list() {
    const heads = await outcome(this.#stores("readonly").heads.getAll());
    this.heads = new Map(heads.map((head) => [head.id, head]));
  }

  async #renew(id) {
    await this.opened;
    if (this.memory) return;
    await this.#list();
    this.changed(id);
  }

  #stores(mode) {
    const doing = this.base.transaction(["heads", "bodies"], mode);
    return { doing, heads: doing.objectStore("heads"), bodies: doing.objectStore("bodies") };
  }

  /** What there is, latest first. */
  list() {
    return [...this.heads.values()].sort((one, other) => other.changed - one.changed);
  }

  async get(id) {
    await this.opened;
    if (this.memory) return this.memory.get(id);
    return outcome(this.#stores("readonly").bodies.get(id));
  }

  /** Keep a conversation as it is now; throws Full. */
  async put(conversation) {
    await this.opened;
    const { id, changed } = conversation;
    const head = { id, title: titleOf(conversation), changed, size: 2 * JSON.stringify(conversation).length };
    const rest = [...this.heads.values()].filter((each) => each.id !== id);
    const bytes = rest.reduce((sum, each) => sum + each.size, head.size);
    if (rest.length >= MOST || bytes > MOST_BYTES) {
      throw new Full(`This browser keeps at most ${MOST} conversations and ${MOST_BYTES / 2 ** 20} MiB of them.`);
    }
    this.heads.set(id, head);
    if (this.memory) {
      this.memory.set(id, conversation);
      return;
    }
    const { doing, heads, bodies } = this.#stores("readwrite");
    heads.put(head);
    bodies.put(conversation);
    await this.#done(doing, id);
  }

  /** Remove a conversation; returns it, undefined if there is none. */
  async remove(id) {
    await this.opened;
    this.heads.delete(id);
    if (this.memory) {
      const body = this.memory.get(id);
      this.memory.delete(id);
      return body;
    }
    const { doing, heads, bodies } = this.#stores("readwrite");
    const body = outcome(bodies.get(id));
    heads.delete(id);
    bodies.delete(id);
    await this.#done(doing, id);
    return body;
  }

  /** All of all conversations. */
  async all() {
    const found = await Promise.all(this.list().map(({ id }) => this.get(id)));
    return found.filter(Boolean);
  }

  /** The ids of the conversations whose title or messages have all words of `text`, whatever their case. */
  async find(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = new Set();
    for (const { id } of this.list()) {
      const conversation = await this.get(id); // one after the other: all together may be large
      const said = conversation ? [titleOf(conversation), ...conversation.messages.map(({ content }) => content)] : [];
      const all = said.join("\n").toLowerCase();
      if (words.every((word) => all.includes(word))) found.add(id);
    }
    return found;
  }

  /** Commit what has been asked of the transaction `doing`, and wait until it is done. */
  async #done(doing, id) {
    // Without an explicit commit the browser waits for this page to see each request's outcome, and takes all of it
    // back if the page is reloaded before.
    doing.commit();
    await new Promise((resolve, reject) => {
      doing.addEventListener("complete", resolve);
      doing.addEventListener("abort", () => reject(new Full(doing.error?.message ?? "The browser keeps no more.")));
    });
    this.others.postMessage(id);
  }
}

function outcome(asked) {
  return new Promise((resolve, reject) => {
    asked.addEventListener("success", () => resolve(asked.result));
    asked.addEventListener("error", () => reject(asked.error));
    asked.addEventListener("blocked", () => reject(new Error("another tab holds an older store")));
  });
}
