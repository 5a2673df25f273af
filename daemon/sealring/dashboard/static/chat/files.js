// Conversations as files: JSON, which can be read back, and Markdown, for people.

import { make } from "../dom.js";
import { checked, titleOf } from "./conversation.js";

const FORMAT = "sealring-conversations";
const MAX_FILE = 64 * 2 ** 20;

/** Give a person conversations as a JSON file. */
export function saveJson(conversations, name) {
  save(`${name}.json`, "application/json", JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1));
}

/** The same of one as Markdown. */
export function saveMarkdown(conversation) {
  save(`${fileName(titleOf(conversation))}.md`, "text/markdown", markdown(conversation));
}

/** The conversations of a JSON file; throws RangeError with what is wrong with it. */
export async function load(file) {
  if (file.size > MAX_FILE) throw new RangeError(`it has more than ${MAX_FILE / 2 ** 20} MiB`);
  let given;
  try {
    given = JSON.parse(await file.text());
  } catch {
    throw new RangeError("it is no JSON");
  }
  if (given?.format !== FORMAT || given.version !== 1 || !Array.isArray(given.conversations)) {
    throw new RangeError("it is no file of conversations that this page has saved");
  }
  return given.conversations.map(checked);
}

/** A title without what file names must not have. */
export const fileName = (title) => title.replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 60) || "conversation";

export function markdown(conversation) {
  const parts = [`# ${titleOf(conversation)}`];
  if (conversation.settings.system) parts.push(`## System prompt\n\n${conversation.settings.system}`);
  for (const message of conversation.messages) {
    if (message.role === "user") parts.push(`## You\n\n${message.content}`);
    else if (message.role === "tool") parts.push(`## Result of ${message.name}\n\n${message.content}`);
    else parts.push(`## The model\n\n${message.content}`, ...message.calls.map(called));
  }
  return `${parts.join("\n\n")}\n`;
}

const called = ({ name, arguments: given }) => `Calls the tool \`${name}\`:\n\n    ${given.replaceAll("\n", "\n    ")}`;

function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = make("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
