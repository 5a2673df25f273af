// A small conversation with the model, by the API that every client has.

import { ApiError, call, events } from "./api.js";
import { byId, make, say } from "./dom.js";
import { count, few, time } from "./format.js";

export class Chat {
  constructor(askForKey) {
    this.askForKey = askForKey;
    this.model = "";
    this.ready = false;
    this.history = [];
    this.stop = null; // while an answer runs
    this.log = byId("log");
    this.text = byId("chat-text");
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    byId("chat-stop").addEventListener("click", () => this.stop?.abort());
    byId("chat-reset").addEventListener("click", () => this.reset());
    this.refresh();
  }

  /** What can be asked now, if anything. */
  serve(model, ready) {
    if (model) this.model = model;
    this.ready = ready;
    this.refresh();
  }

  refresh() {
    const busy = this.stop !== null;
    const stopHadFocus = document.activeElement === byId("chat-stop");
    byId("chat-send").hidden = busy;
    byId("chat-stop").hidden = !busy;
    byId("chat-send").disabled = !this.ready;
    byId("chat-reset").disabled = busy || !this.history.length;
    byId("chat-empty").hidden = this.log.childElementCount > 1;
    if (stopHadFocus && !busy) this.text.focus();
  }

  reset() {
    this.history = [];
    for (const message of this.log.querySelectorAll(".message")) message.remove();
    this.refresh();
    this.text.focus();
  }

  message(role, text = "") {
    const who = make("span", { class: "unseen" }, role === "user" ? "You: " : "Model: ");
    const body = make("span", { class: "text" }, text);
    const element = make("div", { class: `message ${role}` }, who, body);
    this.log.append(element);
    this.refresh();
    this.log.scrollTop = this.log.scrollHeight;
    return { element, body };
  }

  async send() {
    const text = this.text.value.trim();
    if (!text || this.stop || !this.ready) return;
    this.text.value = "";
    this.stop = new AbortController();
    this.message("user", text);
    const { element, body } = this.message("assistant");
    // A reader of the screen gets the answer in one piece, when it is there.
    this.log.setAttribute("aria-busy", "true");
    element.classList.add("writing");
    const answer = { content: "", id: "", end: "" };
    try {
      await this.stream(text, answer, body);
    } catch (error) {
      if (error.name !== "AbortError") this.fail(element, error);
      answer.end = "stopped";
    }
    element.classList.remove("writing");
    this.log.removeAttribute("aria-busy");
    if (answer.content) {
      this.history.push({ role: "user", content: text });
      this.history.push({ role: "assistant", content: answer.content });
    }
    this.stop = null;
    this.refresh();
    await this.tell(element, answer);
  }

  async stream(text, answer, body) {
    const response = await call("/v1/chat/completions", {
      method: "POST",
      signal: this.stop.signal,
      body: {
        model: this.model,
        messages: [...this.history, { role: "user", content: text }],
        stream: true,
      },
    });
    for await (const event of events(response)) {
      if (event.error) throw new ApiError(0, event.error.message);
      answer.id = event.id;
      for (const { delta, finish_reason: end } of event.choices) {
        answer.end = end ?? answer.end;
        this.write(body, delta.reasoning_content, "reasoning");
        this.write(body, delta.content, "content");
        answer.content += delta.content ?? "";
      }
    }
  }

  write(body, piece, kind) {
    if (!piece) return;
    const follows = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
    if (body.lastElementChild?.className !== kind) body.append(make("span", { class: kind }));
    body.lastElementChild.append(piece);
    if (follows) this.log.scrollTop = this.log.scrollHeight;
  }

  fail(element, error) {
    if (error.status === 401) this.askForKey();
    const why = error instanceof ApiError ? error.message : "The head does not answer.";
    element.append(make("span", { class: "wrong" }, why));
  }

  /** What the answer cost, below it. */
  async tell(element, { id, end }) {
    if (!id) return;
    try {
      const response = await call(`/v1/requests/${encodeURIComponent(id)}/trace`);
      const { tokens, tokens_per_s: rate, cached_tokens: known, phases_ms: phases } = await response.json();
      const parts = [count(tokens, "token")];
      if (rate) parts.push(`${few(rate)}/s`);
      if (phases.first_token !== null) parts.push(`first after ${time(phases.first_token)}`);
      if (known) parts.push(`${known} known from before`);
      if (end === "stopped") parts.push("stopped");
      if (end === "length") parts.push("at the context's end");
      const note = make("span", { class: "cost" });
      say(note, parts.join(" · "));
      element.append(note);
      this.log.scrollTop = this.log.scrollHeight;
    } catch {
      // The cost of an answer is no news if the head cannot tell it.
    }
  }
}
