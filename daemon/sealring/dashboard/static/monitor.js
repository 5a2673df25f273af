// The ring's view: facts, numbers, the drawing, plots and requests.

import { byId, say } from "./dom.js";
import { few, time } from "./format.js";
import { Plots } from "./plot.js";
import { Requests } from "./requests.js";
import { Ring, isOpen } from "./ring.js";

const NUMBERS = ["tokens", "prompt", "queued", "prefill", "decode", "hop", "guesses"];

export class Monitor {
  constructor(announce) {
    this.ring = new Ring(byId("ring-drawing"), byId("ring-summary"), byId("ranks"));
    this.plots = new Plots(byId("plots"));
    this.requests = new Requests(announce);
    say(byId("api-url"), `${location.origin}/v1`);
  }

  /** The next event has all of the last minutes. */
  clear() {
    this.plots.clear();
  }

  show({ cluster, samples, over }) {
    byId("ring-view").classList.remove("lost");
    say(byId("cluster"), cluster.cluster);
    say(byId("model"), cluster.model);
    say(byId("trust"), cluster.trust);
    const { name, term } = cluster.head;
    say(byId("head"), term ? `${name}, elected in term ${term}` : name);
    say(byId("roster"), `serial ${cluster.serial}, ${cluster.roster_left}`);
    say(byId("version"), cluster.version);
    say(byId("suite"), cluster.suite === "none" ? "no hops yet" : sealed(cluster));
    byId("suite").title = cluster.activations;

    const { queued, prefill, decode } = cluster.rows;
    const { accepted, rejected } = cluster.guesses;
    const made = accepted + rejected;
    const hop = cluster.hop_us ? time(cluster.hop_us.p50 / 1000) : "–";
    const guesses = made ? `${Math.round((100 * accepted) / made)} %` : "–";
    numbers([few(cluster.tokens_per_s), few(cluster.prompt_tokens_per_s), queued, prefill, decode, hop, guesses]);
    byId("now-guesses").title = made ? `${accepted} of ${made} tokens that the head guessed` : "";
    this.ring.show(cluster);
    this.plots.add(samples);
    this.requests.show(cluster.requests, over);
  }

  /** The head is gone: nothing here is so any more. */
  lost() {
    byId("ring-view").classList.add("lost");
    numbers(NUMBERS.map(() => "–"));
    this.ring.lost();
    this.requests.lost();
  }
}

function numbers(values) {
  NUMBERS.forEach((name, index) => say(byId(`now-${name}`), values[index]));
}

function sealed(cluster) {
  if (isOpen(cluster)) return `${cluster.suite}, but for the sums: NOT SEALED`;
  if (cluster.collective) return `${cluster.suite}, from node to node`;
  return `${cluster.suite}${cluster.inner_seal ? ", twice" : ""}`;
}
