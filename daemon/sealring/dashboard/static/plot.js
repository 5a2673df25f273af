// Three plots of the last minutes over one clock. The newest second is at the right edge.

import { draw, make, say } from "./dom.js";
import { few, time } from "./format.js";

const SECONDS = 300;
const WIDTH = 300; // a unit per second
const HEIGHT = 60;

const PLOTS = [
  {
    title: "Tokens per second",
    series: [{ name: "tokens/s", of: "tokens", kind: "tokens" }],
    tell: few,
    least: 10,
  },
  {
    title: "Requests",
    series: [
      { name: "decoding", of: "decoding", kind: "decode" },
      { name: "reading in", of: "prefilling", kind: "prefill" },
      { name: "waiting", of: "queued", kind: "queued" },
    ],
    tell: few,
    least: 4,
  },
  {
    title: "Time per hop",
    series: [{ name: "hop", of: "hop_us", kind: "hop" }],
    tell: (us) => time(us / 1000),
    least: 100,
  },
];

export class Plots {
  constructor(place) {
    this.columns = {};
    this.plots = PLOTS.map((about) => new Plot(about));
    place.append(...this.plots.map((plot) => plot.figure));
  }

  /** Forget everything. */
  clear() {
    this.columns = {};
  }

  /** More seconds, by column. */
  add(samples) {
    for (const [name, values] of Object.entries(samples)) {
      this.columns[name] = [...(this.columns[name] ?? []), ...values].slice(-SECONDS);
    }
    for (const plot of this.plots) plot.show(this.columns);
  }
}

class Plot {
  constructor(about) {
    this.about = about;
    this.columns = {};
    this.areas = about.series.map(({ kind }) => draw("path", { class: `area ${kind}` }));
    this.lines = about.series.map(({ kind }) => draw("path", { class: `line ${kind}` }));
    this.cursor = draw("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.svg = draw(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
      draw("path", { class: "grid", d: `M0 ${HEIGHT / 2}H${WIDTH}M0 0H${WIDTH}` }),
      ...this.areas,
      ...this.lines.toReversed(), // where a series adds nothing, the one below it shows
      this.cursor,
    );
    this.top = make("span", { class: "top" });
    this.reading = make("span", { class: "reading" });
    const box = make("div", { class: "plot" }, this.svg, this.top);
    this.figure = make(
      "figure",
      {},
      make("figcaption", {}, make("span", {}, about.title), this.reading),
      box,
    );
    box.addEventListener("pointermove", (event) => this.point(event));
    box.addEventListener("pointerleave", () => this.leave());
    this.at = null;
  }

  /** Show the columns. */
  show(columns) {
    this.columns = columns;
    const series = this.about.series.map(({ of }) => columns[of] ?? []);
    const length = Math.max(0, ...series.map((values) => values.length));
    const sums = stack(series, length);
    const peak = Math.max(this.about.least, ...sums.at(-1));
    const top = nice(peak);
    say(this.top, this.about.tell(top));
    sums.forEach((values, index) => {
      const under = index ? sums[index - 1] : values.map(() => 0);
      const gaps = series[index];
      this.areas[index].setAttribute("d", area(values, under, gaps, top));
      this.lines[index].setAttribute("d", line(values, gaps, top));
    });
    this.svg.setAttribute("aria-label", this.summary(series));
    this.read();
  }

  summary(series) {
    const { title, tell } = this.about;
    const parts = this.about.series.map(({ name }, index) => {
      const known = series[index].filter((value) => value !== null);
      if (!known.length) return `${name}: nothing yet`;
      const now = series[index].at(-1);
      return `${name}: ${now === null ? "nothing" : tell(now)} now, at most ${tell(Math.max(...known))}`;
    });
    return `${title}, last five minutes. ${parts.join("; ")}.`;
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    this.at = Math.round(WIDTH * (1 - share)); // seconds ago
    const x = WIDTH - this.at;
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    this.cursor.setAttribute("visibility", "visible");
    this.read();
  }

  leave() {
    this.at = null;
    this.cursor.setAttribute("visibility", "hidden");
    this.read();
  }

  /** The values under the pointer, or the keys of the colours. */
  read() {
    const { series, tell } = this.about;
    const several = series.length > 1;
    if (this.at === null) {
      if (!several) return say(this.reading, "");
      if (!this.reading.querySelector(".key")) {
        this.reading.replaceChildren(
          ...series.map(({ name, kind }) => make("span", { class: `key ${kind}` }, name)),
        );
      }
      return undefined;
    }
    const values = series.map(({ name, of }) => {
      const value = this.columns[of]?.at(-1 - this.at);
      const text = value === null || value === undefined ? "–" : tell(value);
      return several ? `${name} ${text}` : text;
    });
    return say(this.reading, `${values.join(", ")} · ${this.at ? `${this.at} s ago` : "now"}`);
  }
}

/** Each series on top of those before it. */
function stack(series, length) {
  let below = new Array(length).fill(0);
  return series.map((values) => {
    below = below.map((sum, index) => sum + (values[index] ?? 0));
    return below;
  });
}

/** The next round number: 1, 2 or 5 times a power of ten. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

const xOf = (index, length) => WIDTH - (length - 1 - index);
const yOf = (value, top) => Math.round(10 * (HEIGHT - (HEIGHT - 3) * (value / top))) / 10;

/** Runs of indices where there is a value. */
function runs(gaps) {
  const found = [];
  gaps.forEach((value, index) => {
    if (value === null || value === undefined) return;
    const last = found.at(-1);
    if (last && last.at(-1) === index - 1) last.push(index);
    else found.push([index]);
  });
  return found;
}

function line(values, gaps, top) {
  return runs(gaps)
    .map((run) => {
      const points = run.map((i) => `${xOf(i, values.length)} ${yOf(values[i], top)}`);
      return points.length > 1 ? `M${points.join("L")}` : `M${points[0]}h.01`;
    })
    .join("");
}

function area(values, under, gaps, top) {
  return runs(gaps)
    .map((run) => {
      const upper = run.map((i) => `${xOf(i, values.length)} ${yOf(values[i], top)}`);
      const lower = run.toReversed().map((i) => `${xOf(i, values.length)} ${yOf(under[i], top)}`);
      return `M${[...upper, ...lower].join("L")}z`;
    })
    .join("");
}
