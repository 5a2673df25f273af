// Copies text, also on a page that came without TLS, where browsers have no clipboard for scripts.

import { make } from "../dom.js";

/** Whether `text` is in the clipboard now. */
export async function copy(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // not allowed to this page; the other way may be
    }
  }
  const had = document.activeElement;
  const field = make("textarea", { class: "unseen", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  had?.focus();
  return done;
}
