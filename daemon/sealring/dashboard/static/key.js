// Asks for an API key. It is kept in this tab alone.

import { hasKey, setKey } from "./api.js";
import { byId } from "./dom.js";

let asking = null;

/** Ask for a key; settles when there is one to try. */
export function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    byId("key-wrong").hidden = !hasKey();
    byId("key").value = "";
    byId("key-form").addEventListener(
      "submit",
      (event) => {
        event.preventDefault();
        setKey(byId("key").value.trim());
        dialog.close();
        asking = null;
        resolve();
      },
      { once: true },
    );
    if (!dialog.open) dialog.showModal();
  });
  return asking;
}

// Without a key there is nothing to see behind the dialog, so Escape does not close it.
byId("key-dialog").addEventListener("cancel", (event) => event.preventDefault());
