// The list of conversations: search, open, delete (and take that back), export all, import.

import { byId, keep, make, say } from "../dom.js";
import { icon } from "../icons.js";
import { load, saveJson } from "./files.js";

const REGRET = 10_000; // how long a deletion can be taken back
const PAUSE = 200; // milliseconds after a key before the search begins

export class List {
  /** Shows what `store` has. `on` has announce(text), gone(id) and alive(): the ids of conversations under way. */
  constructor(store, on) {
    this.store = store;
    this.on = on;
    this.place = byId("conversation-list");
    this.current = "";
    this.taken = null; // what was deleted last
    this.timer = 0;
    this.found = null; // ids of what the search has found; null without one
    byId("search").addEventListener("input", () => this.#search());
    byId("conversation-new").addEventListener("click", () => this.close());
    byId("export-all").addEventListener("click", async () => saveJson(await store.all(), "sealring-conversations"));
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", () => this.import());
    byId("undo").addEventListener("click", () => this.undo());
    this.place.addEventListener("click", ({ target }) => {
      if (target.closest("a")) this.close();
    });
  }

  /** On a narrow screen the list covers the chat until something is chosen. */
  close() {
    const panel = byId("conversations");
    if (panel.matches(":popover-open")) panel.hidePopover();
  }

  show(current = this.current) {
    this.current = current;
    const all = this.store.list();
    const heads = all.filter(({ id }) => this.found?.has(id) ?? true);
    const alive = this.on.alive();
    say(byId("no-conversations"), all.length ? "Nothing found." : "Nothing yet.");
    byId("no-conversations").hidden = heads.length > 0;
    byId("search").hidden = !all.length && !byId("search").value;
    byId("export-all").disabled = !all.length;
    keep(this.place, heads, (head) => head.id, (head) => this.#item(head), (element, head) => {
      const link = element.querySelector("a");
      say(link, head.title);
      link.title = head.title;
      link.ariaCurrent = head.id === this.current ? "page" : null;
      element.classList.toggle("alive", alive.has(head.id));
      element.querySelector("button").setAttribute("aria-label", `Delete “${head.title}”`);
    });
    say(byId("kept-note"), note(this.store.why));
  }

  /** Show only the conversations that have the words of the search, in any order, once nothing has been typed for a while. */
  #search() {
    clearTimeout(this.searching);
    this.searching = setTimeout(async () => {
      const { value } = byId("search");
      const found = value.trim() ? await this.store.find(value) : null;
      if (value !== byId("search").value) return; // another search has begun
      this.found = found;
      this.show();
      if (found) this.on.announce(found.size === 1 ? "1 conversation found." : `${found.size} conversations found.`);
    }, PAUSE);
  }

  #item({ id }) {
    const trash = make("button", { type: "button", class: "icon-button", title: "Delete" }, icon("trash"));
    trash.addEventListener("click", () => this.remove(id));
    return make("li", {}, make("a", { href: `#${id}` }), trash);
  }

  async remove(id) {
    this.on.gone(id);
    this.taken = await this.store.remove(id);
    this.show();
    if (!this.taken) return;
    byId("regret").hidden = false;
    this.on.announce("The conversation is deleted. It can be undone for ten seconds.");
    byId("undo").focus();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#forget(), REGRET);
  }

  async undo() {
    if (this.taken) await this.#keep([this.taken]);
    this.#forget();
    this.on.announce("The conversation is back.");
  }

  #forget() {
    this.taken = null;
    byId("regret").hidden = true;
  }

  async import() {
    const field = byId("import-file");
    const [file] = field.files;
    if (!file) return;
    byId("import-told").hidden = true;
    try {
      const found = await load(file);
      await this.#keep(found);
      this.#say(`${found.length} imported.`);
      if (found.length) location.hash = found[0].id;
      this.close();
    } catch (error) {
      this.#say(`This file cannot be imported: ${error.message}`);
    }
    field.value = "";
  }

  async #keep(conversations) {
    for (const each of conversations) await this.store.put(each);
    this.show();
  }

  #say(text) {
    say(byId("import-told"), text);
    byId("import-told").hidden = false;
    this.on.announce(text);
  }
}

function note(why) {
  if (why) return `This browser keeps nothing (${why}): conversations end with this tab.`;
  return "Conversations stay in this browser, as they are, and nowhere else. Whoever uses it can read them.";
}
