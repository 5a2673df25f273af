// A conversation: what it consists of, what of it the head is asked with, and what a file of it may hold.
//
// Messages are {role: "user", content}, {role: "tool", call, name, content}, and of the model {role: "assistant",
// content, reasoning, calls: [{id, name, arguments}], end, trouble, stats}. `end` is "" while the answer comes, and
// `asked` (ask.js) is there until all of it has.
//
// A message that has taken the place of others has `versions`: {at, tails}. A tail is a list of messages, from one that
// stood in this place on. The one that is shown is number `at`, and null in the list.

export const SETTINGS = ["system", "temperature", "top_p", "max_tokens", "seed", "tools"];
const NUMBERS = { temperature: [0, 2], top_p: [0, 1], max_tokens: [1, 2 ** 32 - 1], seed: [-(2 ** 53), 2 ** 53] };
const MAX_MESSAGES = 4096; // the head takes no more
const MAX_TEXT = 8 * 2 ** 20;
const MAX_VERSIONS = 50; // of one message, besides the one that is shown
const MAX_DEPTH = 50; // of versions within versions
const MAX_TITLE = 200;

export function fresh() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  const id = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, title: "", created: Date.now(), changed: Date.now(), settings: {}, messages: [] };
}

/** Take `message` and what comes after it out of a conversation; returns the `versions` of what comes in their place. */
export function setAside({ messages }, message) {
  const tail = messages.splice(messages.indexOf(message));
  const versions = message.versions ?? { at: 0, tails: [null] };
  delete message.versions;
  const empty = message.role === "assistant" && !message.content && !message.reasoning && !message.calls.length;
  if (empty) return versions; // nobody wants to go back to that
  const tails = versions.tails.with(versions.at, tail).slice(-MAX_VERSIONS);
  return { at: tails.length, tails: [...tails, null] };
}

/** Have version number `at` of `message` and what came after it in the conversation again; returns these messages. */
export function takeBack({ messages }, message, at) {
  const { tails, at: shown } = message.versions;
  const tail = tails[at];
  delete message.versions;
  const rest = tails.with(shown, messages.splice(messages.indexOf(message))).with(at, null);
  tail[0].versions = { at, tails: rest };
  messages.push(...tail);
  return tail;
}

/** An answer that is still to come. */
export const unanswered = () => ({ role: "assistant", content: "", reasoning: "", calls: [], end: "", trouble: null, stats: null });

/** What a list calls it. */
export function titleOf({ title, messages }) {
  const said = messages.find(({ role }) => role === "user")?.content ?? "";
  const line = said.trim().split("\n", 1)[0];
  return title || (line.length > 60 ? `${line.slice(0, 59)}…` : line) || "New conversation";
}

/** The call of the last answer that waits for its result, if one does. */
export function openCall({ messages }) {
  const at = messages.findLastIndex(({ role }) => role === "assistant");
  if (at < 0 || messages[at].end !== "tool_calls") return null;
  const given = new Set(messages.slice(at + 1).map(({ call }) => call));
  return messages[at].calls.find(({ id }) => !given.has(id)) ?? null;
}

/** What the head is asked for the answer that is the message at `at`. Throws SyntaxError where the tools are no JSON. */
export function question({ messages, settings }, at, model) {
  const asked = { model, messages: turns(messages.slice(0, at), settings.system), stream: true };
  for (const name of Object.keys(NUMBERS)) {
    if (typeof settings[name] === "number") asked[name] = settings[name];
  }
  if (settings.tools?.trim()) asked.tools = JSON.parse(settings.tools);
  return asked;
}

/** Messages as the head takes them. What got no answer is left out: many models refuse two questions in a row. */
function turns(messages, system) {
  const told = system?.trim() ? [{ role: "system", content: system }] : [];
  let waiting = [];
  for (const message of messages) {
    if (message.role === "user") waiting = [{ role: "user", content: message.content }];
    else if (message.role === "tool") told.push({ role: "tool", tool_call_id: message.call, content: message.content });
    else if (message.content || message.calls.length) {
      told.push(...waiting, answered(message));
      waiting = [];
    }
  }
  return [...told, ...waiting];
}

function answered({ content, calls }) {
  if (!calls.length) return { role: "assistant", content };
  const told = calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  return { role: "assistant", content, tool_calls: told };
}

/** The setting `name` as a person typed it: a number or text, undefined for none. Throws RangeError with what is wrong. */
export function setting(name, text) {
  if (!text.trim()) return undefined;
  if (name === "system") return text;
  if (name === "tools") return tools(text);
  const [least, most] = NUMBERS[name];
  const value = Number(text);
  const whole = name === "max_tokens" || name === "seed";
  const fits = Number.isFinite(value) && value >= least && value <= most && (!whole || Number.isSafeInteger(value));
  if (!fits || (name === "top_p" && value === 0)) {
    throw new RangeError(`Give ${whole ? "a whole number" : "a number"} from ${least} to ${most}, or nothing.`);
  }
  return value;
}

function tools(text) {
  try {
    if (Array.isArray(JSON.parse(text))) return text;
  } catch {
    // told below
  }
  throw new RangeError("Give a JSON list of tools, as the API's field tools has it, or nothing.");
}

/** A conversation of a file, with nothing in it but what belongs there. Throws RangeError with what is wrong. */
export function checked(given) {
  const fault = (what) => new RangeError(`a conversation ${what}`);
  if (typeof given !== "object" || given === null) throw fault("is no object");
  if (!Array.isArray(given.messages) || given.messages.length > MAX_MESSAGES) {
    throw fault(`has no list of at most ${MAX_MESSAGES} messages`);
  }
  const found = { ...fresh(), title: text(given.title).slice(0, MAX_TITLE), messages: given.messages.map((each) => message(each)) };
  if (found.messages.includes(null)) throw fault("has a message of no known kind");
  for (const name of ["created", "changed"]) if (Number.isSafeInteger(given[name])) found[name] = given[name];
  for (const name of SETTINGS) {
    const value = given.settings?.[name];
    if (value !== undefined && value !== null) found.settings[name] = setting(name, String(value));
  }
  return found;
}

const text = (value) => (typeof value === "string" ? value.slice(0, MAX_TEXT) : "");

/** A message of a file with its versions, as far as they are such; null where it is no message. */
function message(given, depth = 0) {
  const found = shown(given);
  const { at, tails } = given?.versions ?? {};
  if (!found || depth >= MAX_DEPTH || !Array.isArray(tails) || tails.length > MAX_VERSIONS + 1 || tails[at] !== null) return found;
  const others = tails.map((tail, number) => number === at ? null : Array.isArray(tail) && tail.slice(0, MAX_MESSAGES).map((each) => message(each, depth + 1)));
  const whole = others.every((tail, number) => number === at || (tail && tail.length && !tail.includes(null)));
  if (Number.isInteger(at) && whole && tails.length > 1) found.versions = { at, tails: others };
  return found;
}

function shown(given) {
  const content = text(given?.content);
  switch (given?.role) {
    case "user":
      return { role: "user", content };
    case "tool":
      return { role: "tool", call: text(given.call), name: text(given.name), content };
    case "assistant": {
      const calls = Array.isArray(given.calls) ? given.calls.slice(0, 1024) : [];
      return {
        ...unanswered(),
        content,
        reasoning: text(given.reasoning),
        calls: calls.map((call) => ({ id: text(call?.id), name: text(call?.name), arguments: text(call?.arguments) })),
        end: text(given.end) || "stop",
      };
    }
    default:
      return null;
  }
}
