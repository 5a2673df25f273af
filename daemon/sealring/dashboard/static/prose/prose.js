// A text that grows, shown as what its Markdown means.
//
// No more than one reading is under way, and none begins before the screen has shown the last. While the text
// grows only its last block is read again: those before it are settled. At the end all is read once more, since
// a link's address may stand below it.

import { plain } from "./plain.js";
import { TooLong, read } from "./reader.js";
import { build, change } from "./trees.js";

const NOTHING = { blocks: 0, size: 0 };

export class Prose {
  /** Shows a text in `place`, and calls `grown` whenever it has changed that. */
  constructor(place, grown = () => {}) {
    this.place = place;
    this.grown = grown;
    this.text = "";
    this.trees = []; // of what is shown, by block
    this.offset = 0; // characters that are settled
    this.before = NOTHING; // and what they are
    this.over = false;
    this.stale = false;
    this.work = null;
    this.slow = false; // whether it takes too long to read
    this.unread = false; // whether what is shown is the text as it was written, until it has been read
  }

  /** Show this much of it. */
  write(text) {
    const now = text.replaceAll("\r", "");
    if (now === this.text) return;
    this.text = now;
    this.#renew();
  }

  /** Show all of it; settles when that is done. A text of which nothing is shown yet is there at once, as it was written. */
  async end(text) {
    if (text && !this.text) {
      this.place.replaceChildren(build(plain(text)));
      this.unread = true;
    }
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
      if (this.slow) this.#plain();
      else await this.#read(this.over);
      this.grown();
      const took = performance.now() - began;
      if (took > 60) await new Promise((resolve) => setTimeout(resolve, Math.min(took, 500)));
    }
  }

  async #read(whole) {
    const [from, before] = whole ? [0, NOTHING] : [this.offset, this.before];
    const first = before.blocks;
    try {
      const found = await read(this.text.slice(from), before, (at, blocks) => this.#take(first + at, blocks));
      const { count } = found;
      for (let index = first + count; index < this.trees.length; index += 1) this.place.lastChild.remove();
      this.trees.length = first + count;
      if (!count) return;
      this.offset = from + found.settled;
      this.before = found.before;
    } catch (error) {
      if (!(error instanceof TooLong)) throw error;
      this.slow = true;
      this.#plain();
    }
  }

  #plain() {
    this.place.replaceChildren(build(plain(this.text)));
  }

  #take(at, blocks) {
    if (this.unread) this.place.replaceChildren();
    this.unread = false;
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
