// Where one types: Enter sends, Shift-Enter begins a line, Escape stops the answer, the up arrow edits what was said
// last. What is typed outlives a reload of this tab.

import { byId, say } from "../dom.js";

const DRAFT = "sealring-draft";
const TALLEST = 240; // pixels

export class Composer {
  /** `on` has send(text), which says whether it was taken, stop() and last(). */
  constructor(on) {
    this.on = on;
    this.text = byId("chat-text");
    this.touch = matchMedia("(pointer: coarse)").matches;
    this.text.value = sessionStorage.getItem(DRAFT) ?? "";
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.text.addEventListener("keydown", (event) => this.#key(event));
    this.text.addEventListener("input", () => this.#typed());
    this.text.addEventListener("paste", (event) => {
      if ([...event.clipboardData.items].some(({ type }) => type.startsWith("image/"))) this.refuse();
    });
    byId("chat-stop").addEventListener("click", () => on.stop());
    byId("chat-picture").addEventListener("click", () => this.refuse());
    byId("chat-view").addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented) on.stop();
    });
    this.hint("");
    this.#fit();
  }

  /** Show what can be done now. */
  show({ ready, busy, model, call }) {
    const stopHadFocus = document.activeElement === byId("chat-stop");
    this.model = model;
    byId("chat-send").hidden = busy;
    byId("chat-stop").hidden = !busy;
    byId("chat-send").disabled = !ready;
    const prompt = call ? `Result of ${call.name}` : "Your message";
    say(byId("chat-label"), prompt);
    this.text.placeholder = call ? `What ${call.name} gave` : `Ask ${model || "the model"} something`;
    byId("chat-picture").title = this.#why();
    if (this.passing && ready && !busy) this.hint("");
    if (stopHadFocus && !busy) this.text.focus();
  }

  send() {
    const text = this.text.value.trim();
    if (!text || !this.on.send(text)) return;
    this.text.value = "";
    this.#typed();
  }

  /** Say *text* below the field; one that is *passing* only until something can be asked. */
  hint(text, passing = false) {
    this.passing = passing;
    const usual = this.touch ? "" : "Enter sends, Shift-Enter begins a line";
    say(byId("chat-hint"), text || usual);
  }

  /** Say why a picture cannot be sent. */
  refuse() {
    this.hint(this.#why());
    this.on.announce(this.#why());
  }

  #why() {
    return `No pictures: ${this.model || "the model"} is given text alone`;
  }

  #typed() {
    if (this.text.value) sessionStorage.setItem(DRAFT, this.text.value);
    else sessionStorage.removeItem(DRAFT);
    this.hint("");
    this.#fit();
  }

  #fit() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight, TALLEST)}px`;
  }

  #key(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey && (!this.touch || event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.send();
    } else if (event.key === "ArrowUp" && !this.text.value && this.on.last()) {
      event.preventDefault();
    }
  }
}
