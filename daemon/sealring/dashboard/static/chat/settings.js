// One conversation's settings: its title, its system prompt, how tokens are drawn, tools; and it as a file.

import { byId, say } from "../dom.js";
import { SETTINGS, setting } from "./conversation.js";
import { fileName, saveJson, saveMarkdown } from "./files.js";
import { titleOf } from "./conversation.js";

export class Settings {
  /** `changed(conversation)` is called when a person has changed one. */
  constructor(changed, remove) {
    this.dialog = byId("settings-dialog");
    this.conversation = null;
    byId("settings-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#take()) {
        this.dialog.close();
        changed(this.conversation);
      }
    });
    byId("settings-cancel").addEventListener("click", () => this.dialog.close());
    byId("export-markdown").addEventListener("click", () => saveMarkdown(this.conversation));
    byId("export-json").addEventListener("click", () => {
      saveJson([this.conversation], fileName(titleOf(this.conversation)));
    });
    byId("conversation-delete").addEventListener("click", () => {
      this.dialog.close();
      remove(this.conversation.id);
    });
  }

  open(conversation) {
    this.conversation = conversation;
    const field = byId("set-title");
    field.value = conversation.title;
    field.placeholder = titleOf({ ...conversation, title: "" });
    for (const name of SETTINGS) {
      byId(`set-${name}`).value = conversation.settings[name] ?? "";
      blame(name, "");
    }
    byId("set-more").open = Boolean(conversation.settings.tools);
    const said = conversation.messages.length > 0;
    for (const id of ["export-markdown", "export-json", "conversation-delete"]) byId(id).disabled = !said;
    this.dialog.showModal();
  }

  /** Take what is in the fields, if all of it can be meant. */
  #take() {
    const found = {};
    let wrong = null;
    for (const name of SETTINGS) {
      try {
        const value = setting(name, byId(`set-${name}`).value);
        if (value !== undefined) found[name] = value;
        blame(name, "");
      } catch (error) {
        blame(name, error.message);
        wrong ??= byId(`set-${name}`);
      }
    }
    if (wrong) {
      if (wrong.closest("details")) byId("set-more").open = true;
      wrong.focus();
      return false;
    }
    this.conversation.settings = found;
    this.conversation.title = byId("set-title").value.trim().slice(0, 200);
    return true;
  }
}

/** Say below a field what is wrong with it. */
function blame(name, why) {
  const field = byId(`set-${name}`);
  const place = byId(`wrong-${name}`);
  place.hidden = !why;
  say(place, why);
  field.ariaInvalid = why ? "true" : null;
}
