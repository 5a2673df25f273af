// A text that grows, shown as what its Markdown means.
//
// No more than one reading is under way, and none begins before the screen has shown the last. While the text
// grows only its last block is read again: those before it are settled. At the end all is read once more, since
// a link's address may stand below it.

import { make } from "../dom.js";
import { TooLong, read } from "./reader.js";
import { change } from "./trees.js";

export class Prose {
  /** Shows a text in `place`, and calls `grown` whenever it has changed that. */
  constructor(place, grown = () => {}) {
    this.place = place;
    this.grown = grown;
    this.text = "";
    this.trees = []; // of what is shown, by block
    this.settled = 0; // blocks that are settled, and the characters that they were
    this.offset = 0;
    this.over = false;
    this.stale = false;
    this.work = null;
    this.plain = null; // the element of a text that takes too long to read
  }

  /** Show this much of it. */
  write(text) {
    const now = text.replaceAll("\r", "");
    if (now === this.text) return;
    this.text = now;
    this.#renew();
  }

  /** Show all of it; settles when that is done. */
  async end(text) {
    this.write(text);
    this.over = true;
    this.#renew();
    await this.work;
  }

  #renew() {
    this.stale = true;
    this.work ??= this.#run().finally(() => {
      this.work = null;
    });
  }

  async #run() {
    while (this.stale) {
      const began = performance.now();
      await shown();
      this.stale = false;
      if (this.plain) this.plain.textContent = this.text;
      else await this.#read(this.over);
      this.grown();
      const took = performance.now() - began;
      if (took > 60) await new Promise((resolve) => setTimeout(resolve, Math.min(took, 500)));
    }
  }

  async #read(whole) {
    const [first, from] = whole ? [0, 0] : [this.settled, this.offset];
    try {
      const { count, settled } = await read(this.text.slice(from), (at, blocks) => this.#take(first + at, blocks));
      for (let index = first + count; index < this.trees.length; index += 1) this.place.lastChild.remove();
      this.trees.length = first + count;
      this.settled = first + Math.max(0, count - 1);
      this.offset = from + settled;
    } catch (error) {
      if (!(error instanceof TooLong)) throw error;
      this.trees = [];
      this.plain = make("p", { class: "plain" }, this.text);
      this.place.replaceChildren(this.plain);
    }
  }

  #take(at, blocks) {
    blocks.forEach((tree, index) => {
      change(this.place, at + index, this.trees[at + index], tree);
      this.trees[at + index] = tree;
    });
    if (this.trees.length > 100) this.place.classList.add("long");
  }
}

/** The next time that the screen is drawn; soon, if nobody sees it. */
function shown() {
  return new Promise((resolve) => {
    if (document.visibilityState === "hidden") setTimeout(resolve, 100);
    else requestAnimationFrame(resolve);
  });
}
