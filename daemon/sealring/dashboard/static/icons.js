// Small drawings for buttons. They say nothing by themselves: each button has its name in words.

import { draw } from "./dom.js";

const PATHS = {
  after: "M9 5l7 7l-7 7",
  again: "M20 11a8 8 0 1 0-2.3 5.7M20 4v7h-7",
  before: "M15 5l-7 7l7 7",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  export: "M12 4v11M7 10l5 5 5-5M5 20h14",
  import: "M12 15V4M7 9l5-5 5 5M5 20h14",
  list: "M4 6h16M4 12h16M4 18h10",
  picture: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15 9.500h.01",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5a2 2 0 1 0 0 4a2 2 0 1 0 0-4M9 15a2 2 0 1 0 0 4a2 2 0 1 0 0-4",
  stop: "M7 7h10v10H7z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
};

/** A drawing by its name. */
export function icon(name) {
  return draw("svg", { viewBox: "0 0 24 24", class: `icon icon-${name}`, "aria-hidden": "true" }, draw("path", { d: PATHS[name] }));
}

/** Draw what the elements below `root` ask for. */
export function decorate(root) {
  for (const element of root.querySelectorAll("[data-icon]")) element.prepend(icon(element.dataset.icon));
}
