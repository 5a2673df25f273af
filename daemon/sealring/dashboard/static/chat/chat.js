// The chat: conversations with the model, by the API that every client has.

import { ApiError, Lost } from "../api.js";
import { byId, say } from "../dom.js";
import { Composer } from "./composer.js";
import { fresh, openCall, question, setAside, takeBack, titleOf, unanswered } from "./conversation.js";
import { asking, cost, ask } from "./ask.js";
import { List } from "./list.js";
import { Log } from "./log.js";
import { Settings } from "./settings.js";
import { Full, Store } from "./store.js";
import { explain } from "./trouble.js";

const STATES = { parse: "arriving", queued: "waiting for a place", prefill: "reading the conversation", decode: "" };
const SHORT = 400; // characters of an answer that are read out at its end
const KEEP_EVERY = 3000; // milliseconds between two savings of an answer that comes
const COMING = "sealring-coming"; // the conversations whose answers come to this tab, however often it is loaded

export class Chat {
  /** `on` has announce(text) and askForKey(). */
  constructor(on) {
    this.on = on;
    this.cluster = null; // as the head told it last
    this.ready = false;
    this.current = fresh();
    this.running = new Map(); // by conversation: {conversation, message, stop, link}
    this.store = new Store();
    this.store.changed = (id) => this.#changedElsewhere(id);
    this.log = new Log({
      announce: on.announce,
      again: (message) => this.again(message),
      edit: (message, text) => this.edit(message, text),
      version: (message, at) => this.version(message, at),
      left: () => byId("chat-text").focus(),
    });
    this.list = new List(this.store, {
      announce: on.announce,
      gone: (id) => this.#gone(id),
      alive: () => new Set(this.running.keys()),
    });
    this.settings = new Settings((conversation) => this.#changed(conversation), (id) => this.list.remove(id));
    this.composer = new Composer({
      announce: on.announce,
      send: (text) => this.send(text),
      stop: () => this.stop(),
      last: () => this.editLast(),
    });
    byId("settings-open").addEventListener("click", () => this.settings.open(this.current));
    this.store.opened.then(() => this.list.show());
    this.back = this.#comeBack();
    this.refresh();
  }

  /** What the head says of itself. */
  serve(cluster) {
    this.cluster = cluster;
    this.ready = cluster.healthy && !cluster.draining;
    for (const { message } of this.running.values()) this.#showComing(message);
    this.refresh();
  }

  /** The head does not answer: connections that are still open hang. */
  lost() {
    this.ready = false;
    for (const { link } of this.running.values()) link.cut?.();
    this.refresh();
  }

  /** Show the conversation with this id, or a new one. */
  async open(id) {
    if (id ? id === this.current.id : !this.current.messages.length) {
      this.#focus();
      return;
    }
    this.wanted = id;
    await this.back;
    const found = id ? (this.running.get(id)?.conversation ?? (await this.store.get(id))) : fresh();
    if (this.wanted !== id) return; // somebody was quicker
    if (!found) history.replaceState(null, "", "#");
    this.#show(found ?? fresh());
    this.#focus();
  }

  #focus() {
    if (!this.composer.touch) byId("chat-text").focus(); // a phone's keyboard would cover half of it
  }

  #show(conversation) {
    this.current = conversation;
    this.log.show(conversation.messages);
    this.#complete(conversation.messages);
    this.list.show(conversation.id);
    byId("to-chat").href = `#${conversation.messages.length ? conversation.id : ""}`;
    this.refresh();
  }

  /** Show all of the answers among these messages, what is on the screen first: the last. */
  #complete(messages) {
    const coming = this.running.get(this.current.id)?.message;
    for (const message of messages.toReversed()) {
      if (message.role !== "assistant") continue;
      if (message === coming) this.#showComing(message);
      else this.log.find(message).complete();
    }
  }

  refresh() {
    const { current } = this;
    const model = this.cluster?.model ?? "";
    const busy = this.running.has(current.id);
    this.composer.show({ ready: this.ready, busy, model, call: busy ? null : openCall(current) });
    say(byId("chat-title"), titleOf(current));
    say(byId("greeting"), model ? `What shall ${model} answer?` : "One moment");
    byId("chat-empty").hidden = current.messages.length > 0;
    byId("settings-open").classList.toggle("set", Object.keys(current.settings).length > 0);
  }

  /** Say something, with the `versions` that it has taken the place of; returns whether it was taken. */
  send(text, versions) {
    const { current } = this;
    if (!this.#may()) return false;
    const call = openCall(current);
    const said = call ? { role: "tool", call: call.id, name: call.name, content: text } : { role: "user", content: text };
    if (versions?.tails.length > 1) said.versions = versions;
    current.messages.push(said);
    this.log.add(said);
    if (openCall(current)) this.#changed(current); // the model waits for more results
    else this.#answer(current);
    return true;
  }

  /** Whether something can be asked now; says why not. */
  #may() {
    const why = this.running.has(this.current.id) ? "An answer is coming: Escape stops it." : "The ring does not serve just now.";
    const may = this.ready && !this.running.has(this.current.id);
    if (!may) {
      this.composer.hint(why, true);
      this.on.announce(why);
    }
    return may;
  }

  /** Have an answer given once more. */
  again(message) {
    if (!this.#may()) return;
    const versions = this.#cut(message);
    this.#answer(this.current, versions);
    this.#focus();
  }

  /** Say something else in the place of `message`; returns whether it was taken. */
  edit(message, text) {
    if (!this.#may()) return false;
    const taken = this.send(text, this.#cut(message));
    this.#focus();
    return taken;
  }

  /** Show version number `at` of a message, and what came after it. */
  version(message, at) {
    if (!this.#may()) return;
    const tail = takeBack(this.current, message, at);
    this.log.replace(message, tail);
    this.#complete(tail);
    this.log.find(tail[0]).focusVersions();
    this.#changed(this.current);
  }

  /** Edit what was said last; returns whether there is something. */
  editLast() {
    if (this.running.has(this.current.id)) return false;
    const said = this.current.messages.findLast(({ role }) => role === "user");
    if (said) this.log.find(said).edit();
    return Boolean(said);
  }

  stop() {
    this.running.get(this.current.id)?.stop.abort(new DOMException("stopped", "AbortError"));
  }

  #cut(message) {
    this.log.cut(message);
    return setAside(this.current, message);
  }

  async #answer(conversation, versions) {
    const message = { ...unanswered(), asked: asking(this.cluster.model) };
    if (versions?.tails.length > 1) message.versions = versions;
    conversation.messages.push(message);
    this.log.add(message);
    this.log.toEnd();
    this.#follow(conversation, message);
    this.#begun(conversation);
    this.on.announce("The model answers.");
  }

  /** Go on with the answers that came to this tab before it was loaded again. */
  async #comeBack() {
    for (const id of JSON.parse(sessionStorage.getItem(COMING) ?? "[]")) {
      const conversation = await this.store.get(id);
      const message = conversation?.messages.at(-1);
      if (message?.asked) this.#follow(conversation, message);
    }
  }

  /** Have the answer come that `message` is, until it is over. */
  async #follow(conversation, message) {
    const stop = new AbortController();
    const link = {}; // the present connection
    this.running.set(conversation.id, { conversation, message, stop, link });
    this.#remember();
    let lost = false;
    const saving = setInterval(() => this.#keep(conversation), KEEP_EVERY);
    try {
      const body = question(conversation, conversation.messages.length - 1, message.asked.model);
      await ask(message, body, stop.signal, () => this.#showComing(message), link);
    } catch (error) {
      lost = error instanceof Lost;
      message.end = error.name === "AbortError" ? "stopped" : "broken off";
      if (message.end !== "stopped") message.trouble = explain(error);
      if (error instanceof ApiError && error.status === 401) this.on.askForKey();
    }
    clearInterval(saving);
    delete message.asked;
    if (!lost) await cost(message, this.cluster);
    this.running.delete(conversation.id);
    this.refresh();
    const shown = this.log.find(message)?.complete();
    await this.#changed(conversation);
    this.#remember();
    await shown;
    this.#announce(message);
  }

  #remember() {
    sessionStorage.setItem(COMING, JSON.stringify([...this.running.keys()]));
  }

  /** The address of a conversation is its id, once something is said in it. */
  #begun(conversation) {
    if (location.hash.slice(1) !== conversation.id) history.pushState(null, "", `#${conversation.id}`);
    byId("to-chat").href = `#${conversation.id}`;
    this.#changed(conversation);
  }

  #showComing(message) {
    const state = this.cluster?.requests.find(({ id }) => id === message.id)?.state;
    this.log.find(message)?.coming(STATES[state] ?? "asking");
  }

  #announce({ content, trouble, end }) {
    if (trouble) this.on.announce(`There is no whole answer: ${trouble.what}`);
    else if (end === "stopped") this.on.announce("The answer is stopped.");
    else if (content.length > SHORT) this.on.announce(`The answer is complete: ${content.split(/\s+/).length} words.`);
    else this.on.announce(`The model says: ${content}`);
  }

  async #changed(conversation) {
    conversation.changed = Date.now();
    this.refresh();
    await this.#keep(conversation);
    this.list.show(this.current.id);
  }

  async #keep(conversation) {
    if (!conversation.messages.length || conversation.deleted) return;
    try {
      await this.store.put(conversation);
    } catch (error) {
      if (!(error instanceof Full)) throw error;
      this.composer.hint(`Not kept: ${error.message} Delete or export some.`);
    }
  }

  #gone(id) {
    const run = this.running.get(id);
    if (run) {
      run.conversation.deleted = true;
      run.stop.abort(new DOMException("stopped", "AbortError"));
    }
    if (id === this.current.id) location.hash = "";
  }

  async #changedElsewhere(id) {
    this.list.show();
    if (id !== this.current.id || this.running.has(id)) return;
    const found = await this.store.get(id);
    if (found && id === this.current.id && !byId("log-list").querySelector(".edited")) this.#show(found);
  }
}
