// Making and changing elements. Text is always text: nothing here takes markup.

const SVG = "http://www.w3.org/2000/svg";
const MATH = "http://www.w3.org/1998/Math/MathML";

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** A new element: attributes by name, then children, which are nodes or texts. */
export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for a part of a drawing. */
export function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** The same for a part of a formula. */
export function mathPart(name, attributes = {}, ...children) {
  return fill(document.createElementNS(MATH, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Give an element this text, if it has another. */
export function say(element, text) {
  const value = String(text);
  if (element.textContent !== value) element.textContent = value;
}

/**
 * Keep `list`'s children as one per item, in order. A child stays the same element for as long as
 * its item's key is there, so that focus and selection stay where they are.
 */
export function keep(list, items, keyOf, build, update) {
  const before = new Map([...list.children].map((child) => [child.dataset.key, child]));
  let place = list.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = before.get(key);
    if (child === undefined) {
      child = build(item);
      child.dataset.key = key;
    }
    before.delete(key);
    if (child === place) place = place.nextElementSibling;
    else list.insertBefore(child, place);
    update(child, item);
  }
  for (const child of before.values()) child.remove();
}
