// The ring: a drawing for the eye, a sentence for the ear, and a card for each rank. Ranks that the
// ring goes on without are drawn below it.

import { draw, keep, make, say } from "./dom.js";
import { few, size, time } from "./format.js";

const WIDTH = 480;
const HEIGHT = 300;
const CENTRE = { x: WIDTH / 2, y: HEIGHT / 2 };
const NAMED = 6; // more ranks than this have their names on their cards alone
const ROW = 44; // what the ranks that are left out take below the ring
const LOCKED = 44; // a hop that is drawn shorter than this has no room for its lock

/** How large the ring and its nodes are drawn: the more ranks, the smaller the nodes. */
function scale(world) {
  if (world <= 4) return { radius: 104, node: 30 };
  return world <= 8 ? { radius: 113, node: 24 } : { radius: 121, node: 17 };
}

const LOCK = "M-4 -1v-2.6a4 4 0 0 1 8 0V-1M-5.6 -1h11.2v7h-11.2z";

export class Ring {
  constructor(svg, summary, cards) {
    this.svg = svg;
    this.summary = summary;
    this.cards = cards;
    this.shape = "";
    this.nodes = [];
    this.hops = [];
    this.below = 0; // room for a name below the ring
    this.row = 0; // and for who is left out
    this.narrow = matchMedia("(max-width: 480px)");
    this.narrow.addEventListener("change", () => this.fit());
  }

  /** Leave out what stands beside the ring where there is no room for it. */
  fit() {
    const wide = `0 0 ${WIDTH} ${HEIGHT + this.below + this.row}`;
    const narrow = `${CENTRE.x - 142} 8 284 ${284 + (this.row && this.below + this.row)}`;
    this.svg.setAttribute("viewBox", this.narrow.matches ? narrow : wide);
  }

  /** Show the ring as the head tells it. */
  show(cluster) {
    const { ranks } = cluster;
    const inside = ranks.filter(isInRing);
    const shape = ranks.map((rank) => `${rank.name} ${isInRing(rank)} ${rank.witness}`).join(" ");
    if (shape !== this.shape) {
      this.shape = shape;
      this.build(inside, ranks.filter((rank) => !isInRing(rank)));
    }
    inside.forEach((rank, index) => this.showRank(rank, cluster, this.nodes[index]));
    this.hops.forEach((hop, index) => showHop(hop, cluster, inside, index));
    say(this.rate, few(cluster.tokens_per_s));
    this.svg.classList.toggle("flowing", cluster.tokens_per_s > 0);
    say(this.summary, describe(cluster));
    keep(this.cards, ranks, (rank) => rank.rank, card, (element, rank) => showCard(element, rank, cluster));
  }

  /** The head is gone, and with it all that is known. */
  lost() {
    if (!this.rate) return;
    say(this.rate, "–");
    this.svg.classList.remove("flowing");
    say(this.summary, "The head is out of reach; how the ring is, is not known.");
    for (const { group } of this.nodes) group.dataset.state = "waiting";
    for (const { group } of this.hops) group.dataset.state = "bad";
    for (const element of this.cards.children) {
      element.dataset.state = "waiting";
      say(element.querySelector(".is"), "not known");
    }
  }

  build(ranks, outside) {
    const { radius, node } = scale(ranks.length);
    const circle = new Circle(radius, node, ranks.length);
    this.hops = ranks.length > 1 ? ranks.map((_, index) => hop(circle, index)) : [];
    this.nodes = ranks.map((rank, index) => drawNode(rank, circle, index));
    this.rate = draw("text", { class: "rate", x: CENTRE.x, y: CENTRE.y + 8 }, "0");
    const unit = draw("text", { class: "unit", x: CENTRE.x, y: CENTRE.y + 28 }, "tokens/s");
    this.below = ranks.length <= NAMED && ranks.length % 2 && ranks.length > 1 ? 20 : 0;
    this.row = outside.length ? ROW : 0;
    const bottom = HEIGHT + this.below + ROW / 2 - 4;
    this.svg.replaceChildren(
      ...(ranks.length > 1 ? [] : [draw("circle", { class: "alone", cx: CENTRE.x, cy: CENTRE.y, r: radius })]),
      ...this.hops.map((each) => each.group),
      ...this.nodes.map((each) => each.group),
      ...outside.map((rank, index) => drawOutside(rank, outside.length, index, bottom)),
      this.rate,
      unit,
    );
    this.fit();
  }

  showRank(rank, cluster, { group, layers, memory, inside }) {
    group.dataset.state = rank.ready ? "good" : rank.present ? "waiting" : "bad";
    say(inside, rank.ready ? bare(rank) : "");
    say(layers, rank.ready ? span(rank) : state(rank, cluster));
    say(memory, rank.memory ? size(rank.memory) : "");
  }
}

/** Where on the circle the ranks are: none on top, so that names stand beside it, or below. */
class Circle {
  constructor(radius, node, world) {
    this.radius = radius;
    this.node = node;
    this.world = world;
  }

  angle(index) {
    if (this.world === 1) return Math.PI;
    return -Math.PI / 2 - Math.PI / this.world + (2 * Math.PI * index) / this.world;
  }

  point(angle) {
    return {
      x: round(CENTRE.x + this.radius * Math.cos(angle)),
      y: round(CENTRE.y + this.radius * Math.sin(angle)),
    };
  }
}

const round = (value) => Math.round(value * 10) / 10;

function drawNode(rank, circle, index) {
  const angle = circle.angle(index);
  const { x, y } = circle.point(angle);
  const layers = draw("tspan", { class: "small" });
  const memory = draw("tspan", { class: "small" });
  const inside = draw("text", { class: "inside", x, y: y + 17 });
  const group = draw(
    "g",
    { class: circle.node < 24 ? "node tiny" : "node" },
    draw("circle", { cx: x, cy: y, r: circle.node }),
    draw("text", { class: "number", x, y: y + (circle.node < 24 ? 5 : 7) }, String(rank.rank)),
  );
  if (circle.world <= NAMED) {
    group.append(inside, label(rank, circle, angle, layers, memory));
  }
  return { group, layers, memory, inside };
}

/** A rank that the ring goes on without: below the ring, and no hop leads there. */
function drawOutside(rank, count, index, y) {
  const named = count <= 2;
  const apart = named ? 150 : Math.min(34, 270 / count);
  const x = round(CENTRE.x + apart * (index - (count - 1) / 2) - (named ? 30 : 0));
  const group = draw(
    "g",
    { class: "node tiny", "data-state": "out" },
    draw("title", {}, `${rank.name}: ${rank.witness ? "witness" : "left out"}`),
    draw("circle", { cx: x, cy: y, r: 13 }),
    draw("text", { class: "number", x, y: y + 5 }, String(rank.rank)),
  );
  if (named) group.append(draw("text", { class: "label", "text-anchor": "start", x: x + 20, y: y + 5 }, rank.name));
  return group;
}

/** A rank's name, layers and memory: in three lines beside its node, or in one below it. */
function label(rank, circle, angle, layers, memory) {
  const { x, y } = circle.point(angle);
  const name = draw("tspan", { class: "name" }, rank.name);
  const side = Math.abs(Math.cos(angle)) < 0.3 ? 0 : Math.sign(Math.cos(angle));
  if (!side) {
    layers.setAttribute("dx", 8);
    memory.setAttribute("dx", 8);
    return draw("text", { class: "label", x, y: y + circle.node + 22 }, name, layers, memory);
  }
  const at = x + side * (circle.node + 10);
  const lines = [name, layers, memory];
  lines.forEach((line, index) => {
    line.setAttribute("x", at);
    line.setAttribute("y", y - 12 + 17 * index);
  });
  return draw("text", { class: "label", "text-anchor": side < 0 ? "end" : "start" }, ...lines);
}

/** The arc from a rank to the next, with an arrow's head and, where there is room, a lock. */
function hop(circle, index) {
  const gap = (circle.node + 5) / circle.radius;
  const start = circle.angle(index) + gap;
  const end = circle.angle(index + 1) - gap;
  const tip = circle.point(end);
  const turn = (end * 180) / Math.PI + 90;
  const a = circle.point(start);
  const path = `M${a.x} ${a.y}A${circle.radius} ${circle.radius} 0 0 1 ${tip.x} ${tip.y}`;
  const group = draw(
    "g",
    { class: "hop" },
    draw("path", { class: "line", d: path }),
    draw("path", { class: "flow", d: path }),
    draw("path", { class: "tip", d: "M-7 -5L2 0L-7 5z", transform: move(tip, turn) }),
  );
  if ((end - start) * circle.radius >= LOCKED) {
    const middle = circle.point((start + end) / 2);
    group.append(
      draw("g", { class: "lock", transform: move(middle) }, draw("circle", { r: 11 }), draw("path", { d: LOCK })),
    );
  }
  return { group };
}

const move = ({ x, y }, turn) => `translate(${x} ${y})${turn === undefined ? "" : `rotate(${turn})`}`;

/** A hop works when both its ends are ready, and no end knows the link to be down. */
function showHop({ group }, cluster, ranks, index) {
  const from = ranks[index];
  const to = ranks[(index + 1) % ranks.length];
  const cut = (rank) => rank.links.step === false || rank.tunnel === false;
  const down = !from.ready || !to.ready || cut(from) || cut(to);
  group.dataset.state = down ? "bad" : "good";
  group.dataset.open = isOpen(cluster) ? "yes" : "no";
}

/** The ranks' sums go beside the sealed links, as the owner of the ring allows. */
export const isOpen = ({ collective }) => Boolean(collective) && !collective.sealed;

const span = ({ layers: [first, end] }) =>
  end - first === 1 ? `layer ${first}` : `layers ${first}–${end - 1}`;

/** Whether the ring goes on with a rank. */
export const isInRing = (rank) => rank.in_ring !== false; // an older head does not say

/** What a rank does that is not ready. */
function state(rank, cluster) {
  if (rank.witness) return rank.links.control ? "witness" : "witness, away";
  if (!isInRing(rank)) return "left out";
  if (rank.fetch_bytes) return "fetching";
  if (!rank.present) return "missing";
  return cluster.state === "gathering" ? "waiting" : "loading";
}

/** Where in the model a rank is: its layers, in words. */
export const place = (rank) => (rank.layers.length ? span(rank) : "");

const bare = (rank) => span(rank).replace(/^layers? /, "");

function describe(cluster) {
  const parts = cluster.ranks.map((rank) => {
    const what = rank.ready ? span(rank) : state(rank, cluster);
    const why = rank.outside ? `, ${rank.outside}` : "";
    return `rank ${rank.rank}, ${rank.name}: ${what}${why}`;
  });
  const does = cluster.healthy ? "serves" : "does not serve";
  const open = isOpen(cluster) ? " The sums between its ranks are not sealed." : "";
  const { length } = cluster.ranks.filter(isInRing);
  const most = cluster.ranks.filter((rank) => !rank.witness).length;
  const whole = length < most ? `${length}, of ${most},` : length;
  return `A ring of ${whole} that ${does}. ${parts.join("; ")}.${open}`;
}

/** What is wrong with the link to a rank, if something is. */
const trouble = (rank) => rank.trouble.map((each) => each.what).join("; ");

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
    make("progress", { "aria-label": "fetched" }),
    make("dl", {}, ...values),
    make("p", { class: "trouble" }),
  );
}

function showCard(element, rank, cluster) {
  element.dataset.state = rank.ready ? "good" : rank.present || !isInRing(rank) ? "waiting" : "bad";
  say(element.querySelector(".who"), rank.name);
  const part = rank.rank === 0 ? "head" : `rank ${rank.rank}`;
  say(element.querySelector(".is"), rank.ready ? part : state(rank, cluster));
  say(element.querySelector(".trouble"), isInRing(rank) ? (rank.ready ? trouble(rank) : "") : rank.outside);
  const bar = element.querySelector("progress");
  bar.hidden = !rank.fetch_bytes;
  if (rank.fetch_bytes) bar.value = rank.fetched_bytes / rank.fetch_bytes;
  const places = element.querySelectorAll("dd");
  DETAILS.forEach(([, value], index) => say(places[index], value(rank)));
}
