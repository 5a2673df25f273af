// One message of a conversation, as it is shown: what was said, what can be done with it, and what it cost.

import { make, say } from "../dom.js";
import { count, few, time } from "../format.js";
import { icon } from "../icons.js";
import { Prose } from "../prose/prose.js";
import { ABANDONED } from "./trouble.js";

/** A message's element. `on` has what its buttons do: copy, edit, again, and grown() when it has another size. */
export class Message {
  constructor(message, on) {
    this.message = message;
    this.on = on;
    this.timer = 0;
    this.body = make("div", { class: "body" });
    this.foot = make("div", { class: "foot" });
    this.element = make("article", { class: `message ${message.role}`, "aria-label": WHO[message.role] }, this.body, this.foot);
    this.element.message = this;
    if (message.role === "assistant") this.#answer();
    else this.#said();
    this.#addVersions();
  }

  /** Which version of several this is, and buttons to see the one before and after it. */
  #addVersions() {
    const { at, tails } = this.message.versions ?? {};
    if (!tails) return;
    const turn = (name, label, to) => {
      const button = action(name, label, () => this.on.version(this.message, to));
      button.disabled = to < 0 || to >= tails.length;
      return button;
    };
    const where = make("span", {}, `${at + 1} of ${tails.length}`);
    this.versions = make(
      "span",
      { class: "versions", role: "group", "aria-label": "Versions", tabindex: -1 },
      turn("before", "The version before", at - 1),
      where,
      turn("after", "The version after", at + 1),
    );
    this.foot.prepend(this.versions);
  }

  /** Have the keyboard where a version can be chosen. */
  focusVersions() {
    (this.versions.querySelector("button:focus, button:not(:disabled)") ?? this.versions).focus();
  }

  #said() {
    const { role, name, content } = this.message;
    if (role === "tool") this.body.append(make("p", { class: "which" }, `Result of ${name}`));
    this.body.append(make("div", { class: "text" }, content));
    const actions = [action("copy", "Copy this message", () => this.on.copy(content))];
    if (role === "user") actions.push(action("edit", "Edit this message, and go on from it", () => this.edit()));
    this.foot.append(make("span", { class: "actions" }, ...actions));
  }

  #answer() {
    const thoughts = make("div", { class: "prose" });
    this.thinking = make("summary", {}, "Reasoning");
    this.reasoning = make("details", { class: "reasoning", hidden: "" }, this.thinking, thoughts);
    this.text = make("div", { class: "text prose" });
    this.calls = make("div", { class: "calls" });
    this.wait = make("p", { class: "wait" });
    this.trouble = make("div", { class: "trouble-box", role: "group", "aria-label": "Why there is no answer", hidden: "" });
    this.body.append(this.reasoning, this.text, this.calls, this.wait, this.trouble);
    this.element.setAttribute("aria-busy", "true"); // until all of it is shown
    this.prose = new Prose(this.text, this.on.grown);
    this.thoughts = new Prose(thoughts, this.on.grown);
    this.actions = make(
      "span",
      { class: "actions" },
      action("copy", "Copy this answer", () => this.on.copy(this.message.content)),
      action("again", "Answer again", () => this.on.again(this.message)),
    );
    this.cost = make("span", { class: "cost", hidden: "" });
    this.foot.append(this.cost, this.actions);
  }

  /** Show an answer that is still coming; `state` is what the ring does with it. */
  coming(state = "") {
    const { content, reasoning, calls } = this.message;
    this.element.classList.add("writing");
    this.actions.hidden = true;
    if (reasoning) {
      this.reasoning.hidden = false;
      say(this.thinking, content ? "Reasoning" : "Reasoning…");
      this.thoughts.write(reasoning);
    }
    this.prose.write(content);
    this.#showCalls(calls);
    this.wait.hidden = Boolean(content || reasoning || calls.length);
    say(this.wait, state);
  }

  /** Show an answer of which no more comes; settles when all of it is shown. */
  async complete() {
    const { content, reasoning, calls, stats, end, trouble } = this.message;
    this.element.classList.remove("writing");
    this.actions.hidden = false;
    this.wait.hidden = true;
    this.reasoning.hidden = !reasoning;
    say(this.thinking, "Reasoning");
    this.#showCalls(calls);
    this.#showTrouble(end ? trouble : ABANDONED);
    this.#showCost(stats, end);
    await Promise.all([this.prose.end(content), reasoning && this.thoughts.end(reasoning)]);
    this.element.removeAttribute("aria-busy");
    this.on.grown();
  }

  #showCalls(calls) {
    for (const { name, arguments: given } of calls.slice(this.calls.childElementCount)) {
      const code = make("code", {}, indented(given));
      const head = make("figcaption", {}, make("span", {}, "Calls the tool ", make("b", {}, name)));
      this.calls.append(make("figure", { class: "code call" }, head, make("pre", { tabindex: 0 }, code)));
    }
  }

  #showTrouble(trouble) {
    clearInterval(this.timer);
    this.trouble.hidden = !trouble;
    if (!trouble) return;
    const again = make("button", { type: "button", class: "quiet" });
    again.addEventListener("click", () => this.on.again(this.message));
    this.trouble.replaceChildren(
      make("strong", {}, trouble.what),
      make("span", {}, trouble.advice),
      again,
    );
    const tick = () => {
      const left = Math.ceil((trouble.until - Date.now()) / 1000);
      again.disabled = left > 0;
      say(again, left > 0 ? `Ask again in ${left} s` : "Ask again");
      if (left <= 0) clearInterval(this.timer);
    };
    this.timer = setInterval(tick, 500);
    tick();
  }

  #showCost(stats, end) {
    const parts = stats ? told(stats, end) : [];
    this.cost.hidden = !parts.length;
    say(this.cost, parts.join(" · "));
  }

  /** Have what was said changed in its place. */
  edit() {
    const field = make("textarea", { "aria-label": "The message, to be changed", rows: 3 });
    field.value = this.message.content;
    const send = make("button", { type: "submit" }, "Send");
    const cancel = make("button", { type: "button", class: "quiet" }, "Cancel");
    const note = make("small", {}, "What comes after it stays as an earlier version.");
    const form = make("form", { class: "edit" }, field, make("div", { class: "row" }, note, cancel, send));
    const over = () => {
      form.replaceWith(this.body);
      this.foot.hidden = false;
      this.element.classList.remove("edited");
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!field.value.trim() || !this.on.edit(this.message, field.value.trim())) return;
      over();
    });
    cancel.addEventListener("click", () => {
      over();
      this.on.left();
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        cancel.click();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.body.replaceWith(form);
    this.foot.hidden = true;
    this.element.classList.add("edited");
    field.style.height = `${Math.min(field.scrollHeight + 2, 360)}px`;
    field.focus();
  }
}

const WHO = { user: "You", assistant: "The model", tool: "A tool" };

function action(name, label, does) {
  const button = make("button", { type: "button", class: "icon-button", "aria-label": label, title: label }, icon(name));
  button.addEventListener("click", async () => {
    if ((await does()) === true) {
      button.classList.add("done");
      setTimeout(() => button.classList.remove("done"), 1500);
    }
  });
  return button;
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // models write such things too
  }
}

/** What an answer cost, and who gave it, in words. */
function told({ tokens, rate, first_ms: first, known, ranks, open }, end) {
  const parts = [];
  if (tokens !== undefined) parts.push(count(tokens, "token"));
  if (rate) parts.push(`${few(rate)} tokens/s`);
  if (typeof first === "number") parts.push(`first after ${time(first)}`);
  if (known) parts.push(`${known} known from before`);
  if (end === "stopped") parts.push("stopped");
  if (end === "length") parts.push("ended at its most tokens, or at the context's end");
  if (ranks?.length) parts.push(ranks.map(({ name, layers }) => (layers ? `${name} (${layers})` : name)).join(" → "));
  if (open) parts.push("sums not sealed");
  return parts;
}
