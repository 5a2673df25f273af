// Numbers as people read them.

/** A size in bytes: 1.5 GiB. */
export function size(bytes) {
  let amount = bytes;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (amount < 1024) return `${few(amount)} ${unit}`;
    amount /= 1024;
  }
  return `${few(amount)} TiB`;
}

/** A time given in milliseconds. */
export function time(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return `${few(ms * 1000)} µs`;
  if (ms < 1000) return `${few(ms)} ms`;
  if (ms < 120_000) return `${few(ms / 1000)} s`;
  return `${few(ms / 60_000)} min`;
}

/** Three digits, and no more zeros than they need. */
export function few(value) {
  if (value >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

/** A count and its noun. */
export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
