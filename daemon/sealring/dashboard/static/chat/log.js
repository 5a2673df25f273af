// The place where a conversation is shown. It follows what comes, unless a person has scrolled up.

import { byId } from "../dom.js";
import { copy } from "./clipboard.js";
import { Message } from "./message.js";

const NEAR = 48; // pixels from the end that count as the end

export class Log {
  /** `on` has what a message's buttons do, and announce(text). */
  constructor(on) {
    this.place = byId("log");
    this.list = byId("log-list");
    this.on = { ...on, copy: (text) => this.#copy(text), grown: () => this.follow() };
    this.following = true;
    this.top = 0;
    this.drawn = false;
    this.place.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    byId("to-end").addEventListener("click", () => this.toEnd());
    this.list.addEventListener("click", ({ target }) => {
      const button = target.closest("button.copy-code");
      if (button) this.#code(button);
    });
  }

  /** Show these messages and no others. */
  show(messages) {
    this.list.replaceChildren();
    for (const each of messages) this.add(each);
    this.toEnd();
  }

  /** Show these messages in the place of `message` and all that comes after it. */
  replace(message, messages) {
    this.cut(message);
    for (const each of messages) this.add(each);
  }

  add(message) {
    const shown = new Message(message, this.on);
    this.list.append(shown.element);
    return shown;
  }

  /** The element of a message, if it is shown. */
  find(message) {
    return [...this.list.children].find((element) => element.message.message === message)?.message;
  }

  /** Show nothing of a message and what comes after it. */
  cut(message) {
    const from = [...this.list.children].findIndex((element) => element.message.message === message);
    if (from >= 0) [...this.list.children].slice(from).forEach((element) => element.remove());
  }

  /** Stay at the end, if that is where the person is. */
  follow() {
    if (!this.following || this.drawn) return;
    this.drawn = true;
    requestAnimationFrame(() => {
      this.drawn = false;
      if (this.following) this.place.scrollTop = this.place.scrollHeight;
    });
  }

  toEnd() {
    this.following = true;
    byId("to-end").hidden = true;
    this.follow();
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.place;
    if (scrollHeight - scrollTop - clientHeight < NEAR) this.following = true;
    else if (scrollTop < this.top) this.following = false; // what grows below moves nobody
    this.top = scrollTop;
    byId("to-end").hidden = this.following;
  }

  async #copy(text) {
    const done = await copy(text);
    this.on.announce(done ? "Copied." : "This browser does not let the page copy.");
    return done;
  }

  async #code(button) {
    if (!(await this.#copy(button.closest("figure").querySelector("code").textContent))) return;
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1500);
  }
}
