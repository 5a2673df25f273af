// A text as it was written, as a tree: in pieces, so that the browser lays out only those that are seen.

const PIECE = 8000; // characters in one, and what there is up to the next space

export function plain(text) {
  const pieces = [];
  for (let at = 0; at < text.length; ) {
    const end = next(text, at + PIECE);
    pieces.push(["span", { class: "piece" }, [text.slice(at, end)]]);
    at = end;
  }
  return ["p", { class: "plain" }, pieces.length > 1 ? pieces : [text]];
}

/** Where to cut at or after `place`: behind a space, or where there is none for long, between two letters. */
function next(text, place) {
  const found = /\s/.exec(text.slice(place, place + 1000));
  const end = found ? place + found.index + 1 : place;
  return text.codePointAt(end - 1) > 0xffff ? end + 1 : end; // no letter is cut in two
}
