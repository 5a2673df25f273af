// The worker that reads Markdown: one job at a time, each with an end to its time.

const FILE = "/dashboard/prose/worker.js";
const LONGEST = 4000; // milliseconds for one text

/** A text took too long to read. */
export class TooLong extends Error {}

// The page's policy lets scripts begin by this name alone, and by it begins this one file, whatever is asked.
const policy = globalThis.trustedTypes?.createPolicy("sealring", { createScriptURL: () => FILE });

let worker = null;
let job = null;
let number = 0;
const waiting = [];

/**
 * Have a text read, with what came before it. `take(at, blocks)` gets its blocks, in one call or several. Settles
 * with how many blocks there are, how many characters are settled, and what there is of them; throws TooLong.
 */
export function read(text, before, take) {
  return new Promise((resolve, reject) => {
    waiting.push({ text, before, take, resolve, reject });
    next();
  });
}

function next() {
  if (job || !waiting.length) return;
  job = { ...waiting.shift(), id: (number += 1), timer: 0 };
  if (!worker) {
    worker = new Worker(policy ? policy.createScriptURL("") : FILE, { type: "module" });
    worker.addEventListener("message", ({ data }) => heard(data));
    worker.addEventListener("error", giveUp); // a text that it cannot read, or it could not be loaded
  }
  job.timer = setTimeout(giveUp, LONGEST);
  worker.postMessage({ id: job.id, text: job.text, before: job.before });
}

function heard({ id, at, blocks, last, settled, before }) {
  if (id !== job?.id) return;
  job.take(at, blocks);
  if (last) over(job.resolve, { count: at + blocks.length, settled, before });
}

function giveUp() {
  worker?.terminate();
  worker = null;
  if (job) over(job.reject, new TooLong("The text could not be read in time."));
}

function over(settle, value) {
  clearTimeout(job.timer);
  job = null;
  settle(value);
  next();
}
