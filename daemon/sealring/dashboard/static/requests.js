// The requests: those that run, each with a button that cancels it, and where the time of the
// latest that are over went.

import { ApiError, call } from "./api.js";
import { byId, keep, make, say } from "./dom.js";
import { count, few, time } from "./format.js";

const KEPT = 6;

// Parts of a request's time that add up to its total, in the order in which they come.
const PHASES = [
  ["queue", "waiting", (p) => p.queue],
  ["compute", "compute", (p) => p.compute.reduce((sum, each) => sum + each, 0)],
  ["sample", "sampling", (p) => p.sample],
  ["wait", "behind others", (p) => p.wait + p.turn],
  ["hop", "hops", (p) => p.hop],
  ["seal", "sealing", (p) => p.seal],
  ["rest", "the rest", (p) => p.body + p.parse + p.tokenise],
];

const STATES = { parse: "arriving", queued: "waiting", prefill: "reading in", decode: "decoding" };
const ENDS = {
  stop: "finished",
  length: "at its length",
  tool_calls: "called a tool",
  cancelled: "cancelled",
  request_cancelled: "cancelled",
  client_gone: "client left",
};

export class Requests {
  constructor(announce) {
    this.announce = announce;
    this.over = [];
    const keys = PHASES.map(([kind, name]) => make("span", { class: `key ${kind}` }, name));
    byId("legend").append(...keys);
  }

  /** Show the running requests, and those that have just ended. */
  show(live, over) {
    const known = new Set(this.over.map((each) => each.id));
    this.over = [...over.filter((each) => !known.has(each.id)), ...this.over].slice(0, KEPT);
    say(byId("request-count"), live.length ? `${live.length} running` : "");
    byId("idle").hidden = live.length > 0;
    byId("over-title").hidden = byId("legend").hidden = !this.over.length;
    keep(byId("live"), live, (each) => each.id, (each) => this.row(each), showLive);
    keep(byId("over"), this.over, (each) => each.id, finished, () => {});
  }

  /** The head is gone: which requests run is not known. */
  lost() {
    say(byId("request-count"), "");
    byId("live").replaceChildren();
    byId("idle").hidden = true;
  }

  row(request) {
    const cancel = make(
      "button",
      { type: "button", class: "quiet danger", "aria-label": `Cancel request ${short(request.id)}` },
      "Cancel",
    );
    cancel.addEventListener("click", () => this.cancel(request.id, cancel));
    return make(
      "li",
      {},
      make("span", { class: "pill" }),
      make("code", { title: request.id }, short(request.id)),
      make("span", { class: "detail" }),
      cancel,
    );
  }

  async cancel(id, button) {
    button.disabled = true;
    try {
      await call(`/v1/requests/${encodeURIComponent(id)}`, { method: "DELETE" });
      this.announce(`Request ${short(id)} is cancelled.`);
    } catch (error) {
      button.disabled = false;
      const why = error instanceof ApiError ? error.message : "The head does not answer.";
      this.announce(`Request ${short(id)} is not cancelled: ${why}`);
    }
  }
}

/** The end of an id, which tells it from others. */
const short = (id) => id.slice(-6);

function showLive(element, request) {
  const pill = element.querySelector(".pill");
  pill.dataset.state = request.state;
  say(pill, STATES[request.state] ?? request.state);
  const parts = [request.kind, `${count(request.prompt_tokens, "token")} in`];
  if (request.tokens) parts.push(`${request.tokens} out`);
  if (request.tokens_per_s) parts.push(`${few(request.tokens_per_s)}/s`);
  if (request.owner) parts.push(request.owner);
  parts.push(time(request.phases_ms.total));
  say(element.querySelector(".detail"), parts.join(" · "));
}

function finished(request) {
  const { phases_ms: phases } = request;
  const good = ["stop", "length", "tool_calls"].includes(request.state);
  const detail = [
    `${count(request.prompt_tokens, "token")} in`,
    ...(request.cached_tokens ? [`${request.cached_tokens} known`] : []),
    `${request.tokens} out`,
    ...(phases.first_token === null ? [] : [`first after ${time(phases.first_token)}`]),
    ...(request.tokens_per_s ? [`${few(request.tokens_per_s)}/s`] : []),
    ...(request.accepted_guesses ? [`${request.accepted_guesses} guessed`] : []),
    time(phases.total),
  ];
  return make(
    "li",
    { class: "finished" },
    make(
      "span",
      { class: "pill", "data-state": good ? "stop" : "failed" },
      ENDS[request.state] ?? request.state.replaceAll("_", " "),
    ),
    make("code", { title: request.id }, short(request.id)),
    make("span", { class: "detail" }, detail.join(" · ")),
    bar(phases),
  );
}

/** Where the time went, as shares of a bar. */
export function bar(phases) {
  const parts = PHASES.map(([kind, name, of]) => [kind, name, of(phases) || 0]);
  const total = parts.reduce((sum, [, , ms]) => sum + ms, 0);
  const told = parts.filter(([, , ms]) => ms / total > 0.005);
  const element = make("span", {
    class: "bar",
    role: "img",
    "aria-label": `Of its time: ${told.map(([, name, ms]) => `${name} ${time(ms)}`).join(", ")}.`,
  });
  for (const [kind, name, ms] of told) {
    const part = make("span", { class: `part ${kind}`, title: `${name} ${time(ms)}` });
    part.style.flexGrow = ms / total;
    element.append(part);
  }
  return element;
}
