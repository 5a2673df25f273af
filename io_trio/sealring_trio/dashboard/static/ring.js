// The ring: a drawing for the eye, a sentence for the ear, and a card for each rank.

import { draw, keep, make, say } from "./dom.js";
import { few, size, time } from "./format.js";

const WIDE = "0 0 480 300";
const NARROW = "98 8 284 284"; // without what stands beside the ring
const CENTRE = { x: 240, y: 150 };
const RADIUS = 104;
const NODE = 30;
const NAMED = 6; // more ranks than this have their names on their cards alone

const LOCK = "M-4 -1v-2.6a4 4 0 0 1 8 0V-1M-5.6 -1h11.2v7h-11.2z";

export class Ring {
  constructor(svg, summary, cards) {
    this.svg = svg;
    this.summary = summary;
    this.cards = cards;
    this.shape = "";
    this.nodes = [];
    this.hops = [];
    const narrow = matchMedia("(max-width: 480px)");
    const fit = () => svg.setAttribute("viewBox", narrow.matches ? NARROW : WIDE);
    narrow.addEventListener("change", fit);
    fit();
  }

  /** Show the ring as the head tells it. */
  show(cluster) {
    const { ranks } = cluster;
    const shape = ranks.map((rank) => rank.name).join(" ");
    if (shape !== this.shape) {
      this.shape = shape;
      this.build(ranks);
    }
    ranks.forEach((rank, index) => this.showRank(rank, this.nodes[index]));
    this.hops.forEach((hop, index) => showHop(hop, ranks, index));
    say(this.rate, few(cluster.tokens_per_s));
    this.svg.classList.toggle("flowing", cluster.tokens_per_s > 0);
    say(this.summary, describe(cluster));
    keep(this.cards, ranks, (rank) => rank.rank, card, showCard);
  }

  build(ranks) {
    const places = ranks.map((_, index) => place(index, ranks.length));
    this.hops = ranks.length > 1 ? places.map((from, index) => {
      return hop(from, places[(index + 1) % places.length]);
    }) : [];
    this.nodes = ranks.map((rank, index) => node(rank, places[index], ranks.length));
    this.rate = draw("text", { class: "rate", x: CENTRE.x, y: CENTRE.y + 8 }, "0");
    const unit = draw("text", { class: "unit", x: CENTRE.x, y: CENTRE.y + 28 }, "tokens/s");
    this.svg.replaceChildren(
      ...this.hops.map((each) => each.group),
      ...this.nodes.map((each) => each.group),
      this.rate,
      unit,
    );
  }

  showRank(rank, { group, layers, memory, inside }) {
    group.dataset.state = rank.ready ? "good" : rank.present ? "waiting" : "bad";
    say(inside, rank.ready ? bare(rank) : "");
    say(layers, rank.ready ? span(rank) : rank.present ? "loading" : "missing");
    say(memory, rank.memory ? size(rank.memory) : "");
  }
}

/** Where on the circle a rank is: the head on the left of two, and else on top. */
function place(index, world) {
  const start = world === 2 ? Math.PI : -Math.PI / 2;
  const angle = start + (2 * Math.PI * index) / world;
  return { angle, x: CENTRE.x + RADIUS * Math.cos(angle), y: CENTRE.y + RADIUS * Math.sin(angle) };
}

function node(rank, { angle, x, y }, world) {
  const layers = draw("tspan", { class: "small" });
  const memory = draw("tspan", { class: "small" });
  const inside = draw("text", { class: "inside", x, y: y + 17 });
  const group = draw(
    "g",
    { class: "node" },
    draw("circle", { cx: x, cy: y, r: NODE }),
    draw("text", { class: "number", x, y: y + 7 }, String(rank.rank)),
    inside,
  );
  if (world <= NAMED) group.append(label(rank, angle, x, y, layers, memory));
  return { group, layers, memory, inside };
}

function label(rank, angle, x, y, layers, memory) {
  const across = Math.cos(angle);
  const side = Math.abs(across) < 0.3 ? 0 : Math.sign(across);
  const at = x + side * (NODE + 10);
  const anchor = side < 0 ? "end" : side > 0 ? "start" : "middle";
  // Beside the node in three lines; above or below it where there is no room at the side.
  let top = y - 12;
  if (!side) top = Math.sin(angle) < 0 ? y - NODE - 46 : y + NODE + 18;
  const text = draw("text", { class: "label", "text-anchor": anchor });
  const lines = [draw("tspan", { class: "name" }, rank.name), layers, memory];
  lines.forEach((line, index) => {
    line.setAttribute("x", at);
    line.setAttribute("y", top + 17 * index);
  });
  text.append(...lines);
  return text;
}

/** The arc from one rank to the next, with an arrow's head, and a lock on it. */
function hop(from, to) {
  const gap = (NODE + 5) / RADIUS;
  let sweep = to.angle - from.angle;
  if (sweep <= 0) sweep += 2 * Math.PI;
  const start = from.angle + gap;
  const end = from.angle + sweep - gap;
  const middle = from.angle + sweep / 2;
  const path = arc(start, end, sweep > Math.PI + 1e-9);
  const tip = point(end);
  const turn = (end * 180) / Math.PI + 90;
  const lock = point(middle);
  const group = draw(
    "g",
    { class: "hop" },
    draw("path", { class: "line", d: path }),
    draw("path", { class: "flow", d: path }),
    draw("path", { class: "tip", d: "M-7 -5L2 0L-7 5z", transform: move(tip, turn) }),
    draw("g", { class: "lock", transform: move(lock) }, draw("circle", { r: 11 }), draw("path", { d: LOCK })),
  );
  return { group };
}

function arc(start, end, large) {
  const a = point(start);
  const b = point(end);
  return `M${a.x} ${a.y}A${RADIUS} ${RADIUS} 0 ${large ? 1 : 0} 1 ${b.x} ${b.y}`;
}

function point(angle) {
  return {
    x: round(CENTRE.x + RADIUS * Math.cos(angle)),
    y: round(CENTRE.y + RADIUS * Math.sin(angle)),
  };
}

const round = (value) => Math.round(value * 10) / 10;
const move = ({ x, y }, turn) => `translate(${x} ${y})${turn === undefined ? "" : `rotate(${turn})`}`;

/** A hop works when both its ends are ready, and no end knows the link to be down. */
function showHop({ group }, ranks, index) {
  const from = ranks[index];
  const to = ranks[(index + 1) % ranks.length];
  const down = !from.ready || !to.ready || from.links.step === false || to.links.step === false;
  group.dataset.state = down ? "bad" : "good";
}

const span = ({ layers: [first, end] }) =>
  end - first === 1 ? `layer ${first}` : `layers ${first}–${end - 1}`;

const bare = (rank) => span(rank).replace(/^layers? /, "");

function describe(cluster) {
  const parts = cluster.ranks.map((rank) => {
    const what = rank.ready ? span(rank) : rank.present ? "loading" : "missing";
    return `rank ${rank.rank}, ${rank.name}: ${what}`;
  });
  const state = cluster.healthy ? "serves" : "does not serve";
  return `A ring of ${cluster.ranks.length} that ${state}. ${parts.join("; ")}.`;
}

const DETAILS = [
  ["layers", (rank) => (rank.layers.length ? bare(rank) : "–")],
  ["memory", (rank) => (rank.memory ? size(rank.memory) : "–")],
  ["of it caches", (rank) => size(rank.cache)],
  ["free", (rank) => (rank.room ? size(rank.room) : "–")],
  ["rows", (rank) => String(rank.rows)],
  ["trust", (rank) => rank.trust],
  ["round trip", (rank) => (rank.rtt_us === null ? "–" : time(rank.rtt_us / 1000))],
];

function card(rank) {
  const values = DETAILS.map(([name]) => make("div", {}, make("dt", {}, name), make("dd")));
  return make(
    "li",
    { class: "rank" },
    make("h3", {}, make("span", { class: "dot", "aria-hidden": "true" }), make("span", { class: "who" }), make("span", { class: "is" })),
    make("dl", {}, ...values),
  );
}

function showCard(element, rank) {
  element.dataset.state = rank.ready ? "good" : rank.present ? "waiting" : "bad";
  say(element.querySelector(".who"), rank.name);
  const part = rank.rank === 0 ? "head" : `rank ${rank.rank}`;
  say(element.querySelector(".is"), rank.ready ? part : `${part}, ${rank.present ? "loading" : "missing"}`);
  const places = element.querySelectorAll("dd");
  DETAILS.forEach(([, value], index) => say(places[index], value(rank)));
}
