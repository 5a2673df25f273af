// Reads Markdown and code, away from the page: a text that takes too long costs this worker, and nothing else.
//
// A job is a text, and what came `before` it: how many blocks, of how many elements. Its blocks go back as trees: a
// string is text, and [name, attributes, children] an element. They come in several messages, so that the page can
// show each without a pause. `settled` is how many characters stand before the last block: as long as text is only
// added, they change nothing any more, and `before` is what there is of them.

import hljs from "../vendor/highlight.js";
import MarkdownIt from "../vendor/markdown-it.js";
import { plain } from "./plain.js";

const MAX_NESTING = 40; // of blocks and marks; markdown-it leaves out what is deeper
const MAX_BLOCK = 6000; // elements in one block; a block with more is shown as it was written
const MAX_BLOCKS = 3000; // in one text, and
const MAX_SIZE = 40_000; // elements; the rest is shown as it was written
const MAX_CODE = 100_000; // characters of code that are told apart
const BATCH = 1500; // elements, or this many characters, in one message
const BATCH_TEXT = 100_000;
const MAX_PARAGRAPH = 50_000; // characters; longer ones are shown as they were written
const LINES = 8000; // characters of code in one element, and what there is up to the line's end
const MAX_FORMULA = 5000; // characters, and
const MAX_FORMULA_LINES = 200;

// Where each kind of formula begins and ends, and whether it has a line of its own.
const FORMULAS = [
  ["$$", "$$", true],
  ["\\[", "\\]", true],
  ["\\(", "\\)", false],
];

const markdown = new MarkdownIt({ html: false, linkify: true, typographer: false, maxNesting: MAX_NESTING });
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });

markdown.inline.ruler.before("escape", "math", inlineMath);
markdown.block.ruler.before("fence", "math", blockMath, { alt: ["paragraph", "reference", "blockquote", "list"] });

let temml = null; // loaded with the first text that may have a formula

const HEADINGS = { h1: "h3", h2: "h4", h3: "h5", h4: "h6", h5: "h6", h6: "h6" }; // below those of the page

onmessage = ({ data }) => {
  if (temml || !/\$|\\[([]/.test(data.text)) return work(data);
  return import("../vendor/temml.js").then(
    (module) => {
      temml = module.default;
      work(data);
    },
  ).catch((error) => setTimeout(() => { throw error; })); // where the page hears of it
};

function work({ id, text, before }) {
  const tops = split(markdown.parse(text, {}));
  const lines = beginnings(text);
  const sizes = [];
  let { blocks, size } = before;
  let settled = 0;
  let batch = [];
  let weight = 0;
  let sent = 0;
  const send = (last) => {
    const then = { blocks: before.blocks + sent + batch.length - 1, size: size - (sizes.at(-1) ?? 0) };
    postMessage({ id, at: sent, blocks: batch, last, settled, before: then });
    sent += batch.length;
    batch = [];
    weight = 0;
  };
  for (const tokens of tops) {
    const [from, end] = tokens[0].map;
    const full = blocks >= MAX_BLOCKS || size >= MAX_SIZE; // then the rest is one block
    const source = text.slice(lines[from], full ? text.length : (lines[end] ?? text.length));
    const tree = full ? plain(source) : read(tokens, source);
    settled = lines[from];
    sizes.push(weigh(tree));
    size += sizes.at(-1);
    blocks += 1;
    batch.push(tree);
    weight += sizes.at(-1) + (source.length * BATCH) / BATCH_TEXT;
    if (full) break;
    if (weight >= BATCH) send(false);
  }
  send(true);
}

/** A rule of markdown-it for a formula within a paragraph: `$...$` as well as the kinds above. */
function inlineMath(state, silent) {
  const { src, pos, posMax } = state;
  if (src[pos] !== "$" && src[pos] !== "\\") return false;
  const [open, close, display] = FORMULAS.find(([mark]) => src.startsWith(mark, pos)) ?? ["$", "$", false];
  if (!src.startsWith(open, pos)) return false;
  const end = open === "$" ? dollar(state) : src.slice(0, Math.min(posMax, pos + MAX_FORMULA)).indexOf(close, pos + 2);
  const tex = end < 0 ? "" : src.slice(pos + open.length, end);
  if (!tex.trim()) return false;
  if (!silent) Object.assign(state.push("math", "math", 0), { content: tex, info: display ? "block" : "", markup: open });
  state.pos = end + close.length;
  return true;
}

/**
 * Where the formula ends that the dollar at `state.pos` begins; -1 if it is a sign of money. A formula's first and last
 * characters are no spaces, and no digit follows it.
 */
function dollar(state) {
  const { src, pos, posMax } = state;
  if (/\s/.test(src[pos + 1] ?? " ")) return -1;
  let end = state.dollar > pos ? state.dollar : pos + 1; // the same for all that begin before it: looked for once
  while (end < posMax && !(src[end] === "$" && /[^\s\\]/.test(src[end - 1]) && !/\d/.test(src[end + 1] ?? ""))) end += 1;
  state.dollar = end;
  return end > pos + 1 && end < posMax && end - pos < MAX_FORMULA ? end : -1;
}

/** A rule of markdown-it for a formula that begins a line. Its end is on the same line or a later one. */
function blockMath(state, start, last, silent) {
  const line = (number) => state.src.slice(state.bMarks[number] + state.tShift[number], state.eMarks[number]).trimEnd();
  const first = line(start);
  const found = FORMULAS.find(([mark, , display]) => display && first.startsWith(mark));
  if (!found) return false;
  const [open, close] = found;
  const parts = [first.slice(2)];
  let end = start;
  while (!parts.at(-1).endsWith(close)) {
    end += 1;
    if (end >= last || end - start > MAX_FORMULA_LINES || state.sCount[end] < state.blkIndent) return false;
    if (line(end).includes(open) && open !== close) return false;
    parts.push(line(end));
  }
  const tex = parts.join("\n").slice(0, -2);
  if (!tex.trim() || tex.length > MAX_FORMULA || tex.includes(close)) return false;
  if (silent) return true;
  Object.assign(state.push("math", "math", 0), { content: tex, info: "block", markup: open, map: [start, end + 1] });
  state.line = end + 1;
  return true;
}

/** A formula as a tree; as it was written if that is no TeX. */
function math({ content, info, markup, map }) {
  const options = { displayMode: info === "block", throwOnError: true, maxExpand: 200, maxSize: [20, 20] };
  try {
    return mathTree(temml.__renderToMathMLTree(content, options));
  } catch {
    const close = FORMULAS.find(([open]) => open === markup)?.[1] ?? markup;
    return map ? plain(markup + content + close) : markup + content + close;
  }
}

function mathTree(node) {
  if (typeof node.text === "string" && !node.children) return node.text;
  const children = node.children.map(mathTree);
  if (!node.type) return ["mrow", null, children]; // a fragment
  const names = node.classes?.filter((name) => /^tml-[a-z-]+$/.test(name)).join(" ");
  return [node.type, { ...node.attributes, ...(names && { class: names }) }, children];
}

/** The tokens of each block that is in no other. */
function split(tokens) {
  const tops = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0 && token.nesting >= 0) tops.push([]);
    tops.at(-1).push(token);
    depth += token.nesting;
  }
  return tops;
}

/** Where each line of a text begins, and one place beyond the last. */
function beginnings(text) {
  const places = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) places.push(at + 1);
  places.push(text.length);
  return places;
}

/** One block as a tree. */
function read(tokens, source) {
  const deepest = tokens.some((token) => token.level >= MAX_NESTING - 1);
  const long = tokens[0].tag === "p" && source.length > MAX_PARAGRAPH;
  return (deepest || long ? null : grow(tokens)) ?? plain(source);
}

/** The tree of a block's tokens; null if it would have too many elements. */
function grow(tokens) {
  const root = ["", null, []];
  const open = [root];
  let size = 0;
  const add = (tree) => {
    size += weigh(tree);
    open.at(-1)[2].push(tree);
  };
  const walk = (token) => {
    if (token.nesting > 0) {
      if (token.hidden) return open.push(open.at(-1)); // a tight list has no paragraphs
      const tree = [HEADINGS[token.tag] ?? token.tag, attributes(token), []];
      size += 1;
      open.at(-1)[2].push(tree);
      return open.push(tree);
    }
    if (token.nesting < 0) return open.pop();
    if (token.type === "inline") {
      for (const child of token.children) {
        walk(child);
        if (size > MAX_BLOCK) return undefined;
      }
      return undefined;
    }
    return add(leaf(token));
  };
  for (const token of tokens) {
    walk(token);
    if (size > MAX_BLOCK) return null;
  }
  return root[2][0] ?? ["p", null, []];
}

function weigh(tree) {
  if (typeof tree === "string") return 0;
  return 1 + tree[2].reduce((sum, each) => sum + weigh(each), 0);
}

function attributes(token) {
  if (token.tag === "a") return { href: token.attrGet("href") };
  if (token.tag === "ol") {
    const start = token.attrGet("start");
    return start === null ? null : { start: String(start) };
  }
  const align = /text-align:(left|center|right)/.exec(token.attrGet("style") ?? "");
  return align ? { class: align[1] } : null;
}

/** What has no contents that are tokens. */
function leaf(token) {
  switch (token.type) {
    case "text":
      return token.content;
    case "softbreak":
      return "\n";
    case "hardbreak":
      return ["br", null, []];
    case "hr":
      return ["hr", null, []];
    case "code_inline":
      return ["code", null, [token.content]];
    case "image":
      return picture(token);
    case "math":
      return math(token);
    case "fence":
      return code(token.content, token.info.trim().split(/\s+/)[0]);
    case "code_block":
      return code(token.content, "");
    default:
      return token.content;
  }
}

/** A picture is not loaded: whoever has it would learn who reads this, and could be told what. */
function picture(token) {
  const name = token.content || "without a name";
  return ["a", { href: token.attrGet("src"), class: "picture" }, [`Picture: ${name}`]];
}

function code(text, language) {
  const known = /^[\w+#.-]{1,30}$/.test(language) ? language : "";
  const body = ["code", null, parts(text, known)];
  const bar = [
    "figcaption",
    null,
    [
      ["span", null, [known || "text"]],
      ["button", { class: "copy-code" }, ["Copy"]],
    ],
  ];
  return ["figure", { class: "code" }, [bar, ["pre", null, [body]]]];
}

/** Code, its parts marked where the language is known. */
function parts(text, language) {
  if (text.length <= MAX_CODE && hljs.getLanguage(language)) {
    const found = hljs.highlight(text, { language, ignoreIllegals: true });
    return found._emitter.rootNode.children.map(marked); // where others are given HTML, these are the parts
  }
  const lines = [];
  for (let at = 0; at < text.length; ) {
    const line = text.indexOf("\n", at + LINES) + 1 || text.length;
    const end = Math.min(line, at + 2 * LINES); // a line that has no end is cut
    lines.push(["span", { class: "lines" }, [text.slice(at, end)]]);
    at = end;
  }
  return lines.length > 1 ? lines : [text];
}

function marked(node) {
  if (typeof node === "string") return node;
  const children = node.children.map(marked);
  const name = /^[a-z]+/.exec(node.scope ?? "");
  return ["span", name ? { class: `hl-${name[0]}` } : null, children];
}
