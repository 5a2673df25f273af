// Elements from trees as prose/worker.js gives them, and the least change from one tree to another.
//
// Only what stands in the tables here becomes an element or an attribute, whatever a tree says.

import { make, mathPart } from "../dom.js";

const NAMES = new Set(
  ("p h3 h4 h5 h6 ul ol li blockquote pre code em strong s a br hr table thead tbody tr th td span figure " +
    "figcaption button").split(" "),
);
const CLASS = /^(?:left|center|right|plain|picture|code|copy-code|lines|piece|hl-[a-z]+)$/;
const FORMULA = new Set(
  ("math mrow mi mn mo ms mtext mspace mfrac msqrt mroot mstyle mpadded mphantom msub msup msubsup munder mover " +
    "munderover mmultiscripts mprescripts mtable mtr mtd").split(" "),
);
const IN_FORMULA = new Set(
  ("display displaystyle scriptlevel mathvariant stretchy symmetric fence separator form lspace rspace largeop " +
    "movablelimits accent accentunder linethickness minsize maxsize width height depth voffset").split(" "),
);
const FORMULA_CLASS = /^(?:tml-[a-z-]+ ?)+$/;
const OTHERS = ["http:", "https:", "mailto:"]; // where a link may lead

/** The element or text of a tree. */
export function build(tree) {
  if (typeof tree === "string") return document.createTextNode(tree);
  const [name, attributes, children] = tree;
  if (FORMULA.has(name)) return formula(name, attributes ?? {}, children);
  const element = make(NAMES.has(name) ? name : "span", {}, ...children.map(build));
  if (attributes?.class && CLASS.test(attributes.class)) element.className = attributes.class;
  if (name === "a") lead(element, attributes?.href);
  if (name === "ol" && /^\d{1,9}$/.test(attributes?.start)) element.setAttribute("start", attributes.start);
  if (name === "button") element.type = "button";
  if (name === "pre") element.tabIndex = 0; // it scrolls, so the keyboard must get there
  return element;
}

function formula(name, attributes, children) {
  const given = Object.entries(attributes).filter(([key, value]) =>
    key === "class" ? FORMULA_CLASS.test(value) : IN_FORMULA.has(key),
  );
  return mathPart(name, Object.fromEntries(given), ...children.map(build));
}

/** Have a link lead out of this page, and tell where, or nowhere. */
function lead(element, href) {
  const url = URL.canParse(href ?? "") ? new URL(href) : null;
  if (!url || !OTHERS.includes(url.protocol)) return;
  element.href = url.href;
  element.target = "_blank";
  element.rel = "noopener noreferrer";
  element.title = element.className === "picture" ? `${url.href} (not loaded)` : url.href;
}

/** Whether two trees are alike. */
export function alike(one, other) {
  if (typeof one === "string" || typeof other === "string") return one === other;
  return one[0] === other[0] && same(one[1], other[1]) && all(one[2], other[2]);
}

const all = (ones, others) => ones.length === others.length && ones.every((one, i) => alike(one, others[i]));
const same = (ones, others) => JSON.stringify(ones) === JSON.stringify(others);

/**
 * Change a child of `parent`, made of the tree `before`, to what `after` says; what is alike stays the same
 * element, so that a selection in it, and the place that it is scrolled to, stay too.
 */
export function change(parent, index, before, after) {
  const node = parent.childNodes[index];
  if (before === undefined || node === undefined) {
    parent.append(build(after));
  } else if (typeof before === "string" && typeof after === "string") {
    if (after.startsWith(before)) node.appendData(after.slice(before.length));
    else node.data = after;
  } else if (typeof before !== "string" && typeof after !== "string" && before[0] === after[0] && same(before[1], after[1])) {
    after[2].forEach((tree, i) => {
      if (before[2][i] === undefined || !alike(before[2][i], tree)) change(node, i, before[2][i], tree);
    });
    while (node.childNodes.length > after[2].length) node.lastChild.remove();
  } else {
    node.replaceWith(build(after));
  }
}
