// Machines that wait to join: who they are, and the question whether one may. What a machine says
// of itself is a stranger's text, and is shown as text alone.

import { call } from "./api.js";
import { byId, keep, make, say } from "./dom.js";
import { size, time } from "./format.js";

const OVER = ["joined", "refused", "left"];

export class Newcomers {
  constructor(announce) {
    this.announce = announce;
    this.known = new Map(); // each as it was shown last, by its id
    this.rights = null; // what the head says of the key of this tab
    this.asking = false;
    this.asked = null; // whom the dialog is about
    this.pending = false; // the head was told the answer, and has not said what came of it
    this.mine = new Set(); // ids about which this page has decided
    this.dialog = byId("admit-dialog");
    byId("admit-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.decide("accept");
    });
    byId("admit-no").addEventListener("click", () => this.decide("refuse"));
    byId("admit-later").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("close", () => (this.asked = null));
  }

  /** Show those that wait, and what became of the others. */
  show(newcomers) {
    const waiting = newcomers.filter((each) => !OVER.includes(each.state));
    const fresh = newcomers.filter((each) => !this.known.has(each.id));
    if (fresh.length) this.rights = null; // a key may have got another right meanwhile
    if (waiting.length && !this.rights) this.ask();
    for (const each of newcomers) this.tell(each);
    this.known = new Map(newcomers.map((each) => [each.id, each]));
    this.draw();
    if (this.asked) this.question(this.known.get(this.asked.id) ?? { ...this.asked, state: "left" });
  }

  /** The head is gone: who waits is not known. */
  lost() {
    this.rights = null;
    byId("newcomers").hidden = true;
    if (this.asked) this.refuseToAsk("The head is out of reach.");
  }

  /** Say what is new of one, once. */
  tell(newcomer) {
    const before = this.known.get(newcomer.id)?.state;
    if (before === newcomer.state) return;
    if (before) this.announce(this.outcome(newcomer));
    else if (newcomer.state === "waiting")
      this.announce(`A machine waits to join: ${newcomer.name}. Its four words are ${words(newcomer)}.`);
  }

  draw() {
    const newcomers = [...this.known.values()];
    byId("newcomers").hidden = !newcomers.length;
    const waiting = newcomers.filter((each) => each.state === "waiting").length;
    const many = waiting > 1 ? `${waiting} machines wait to join` : "A machine waits to join";
    say(byId("newcomers-title"), waiting ? many : "Machines that wait no more");
    const [build, update] = [(each) => this.card(each), (card, each) => this.update(card, each)];
    keep(byId("newcomer-list"), newcomers, (each) => each.id, build, update);
  }

  card(newcomer) {
    const decide = make("button", { type: "button", class: "decide" }, "Decide");
    decide.addEventListener("click", () => this.open(this.known.get(newcomer.id)));
    return make(
      "li",
      {},
      make("strong", { class: "who" }),
      decide,
      make("p", { class: "words" }, words(newcomer)),
      make("p", { class: "about" }),
      make("p", { class: "says" }),
      make("p", { class: "looks" }),
      make("p", { class: "how" }),
      make("code", { class: "command" }),
    );
  }

  update(element, newcomer) {
    const part = (name) => element.querySelector(`.${name}`);
    const waits = newcomer.state === "waiting";
    say(part("who"), newcomer.name);
    part("decide").setAttribute("aria-label", `Decide about ${newcomer.name}`);
    say(part("about"), about(newcomer));
    say(part("says"), says(newcomer));
    say(part("looks"), waits ? looks(newcomer) : "");
    const may = Boolean(this.rights?.may_admit);
    part("decide").hidden = !(waits && may);
    say(part("how"), waits ? (this.rights?.why_not ?? "") : this.outcome(newcomer));
    part("command").hidden = !waits || may || !this.rights;
    if (this.rights) say(part("command"), `${this.rights.command} ${newcomer.fingerprint}`);
  }

  /** What became of one, in a sentence. */
  outcome({ id, state, name, by, why }) {
    const mine = this.mine.has(id);
    if (state === "waiting") return `${name} waits.`;
    if (state === "admitted") return `${name} may join, and stores its files.`;
    if (state === "joined") return `${name} is a member now${mine ? "" : by ? `: ${by} has let it in` : ", let in elsewhere"}.`;
    if (state === "refused") return `${name} was refused${mine ? "" : by ? ` by ${by}` : " elsewhere"}.`;
    return `${name} has left before it joined${why ? `: ${why}` : ""}.`;
  }

  /** Ask the head whether the key of this tab may decide. */
  async ask() {
    if (this.asking) return;
    this.asking = true;
    try {
      this.rights = await (await call("/v1/newcomers")).json();
      this.draw();
    } catch {
      this.rights = null; // the next event asks again
    } finally {
      this.asking = false;
    }
  }

  // ------------------------------------------------------------ the question

  open(newcomer) {
    this.asked = newcomer;
    this.pending = false;
    say(byId("admit-title"), `May ${newcomer.name} join?`);
    say(byId("admit-words"), words(newcomer));
    this.question(newcomer);
    this.dialog.showModal();
  }

  /** Show the question as the newcomer is now. */
  question(newcomer) {
    const waits = newcomer.state === "waiting";
    say(byId("admit-about"), about(newcomer));
    say(byId("admit-says"), says(newcomer));
    say(byId("admit-looks"), looks(newcomer));
    if (this.pending) return; // what came of it is on its way
    if (waits) this.enable(true);
    else this.refuseToAsk(this.outcome(newcomer));
  }

  /** There is nothing to answer any more, because of `why`. */
  refuseToAsk(why) {
    this.enable(false, why);
    byId("admit-later").focus();
  }

  enable(on, why = "") {
    byId("admit-yes").disabled = byId("admit-no").disabled = !on;
    say(byId("admit-later"), why ? "Close" : "Not now");
    byId("admit-wrong").hidden = !why;
    say(byId("admit-wrong"), why);
  }

  async decide(decision) {
    const { id } = this.asked;
    this.pending = true;
    this.mine.add(id);
    this.enable(false);
    let fault = "";
    try {
      await call(`/v1/newcomers/${encodeURIComponent(id)}/${decision}`, { method: "POST" });
    } catch (error) {
      this.mine.delete(id);
      fault = error.message;
    }
    this.pending = false;
    if (this.asked?.id !== id) return; // the dialog was closed meanwhile
    if (fault) {
      this.refuseToAsk(fault);
      return;
    }
    this.dialog.close();
    byId("newcomers-title").focus(); // the button is gone from which it was opened
  }
}

const words = ({ fingerprint }) => fingerprint.replaceAll("-", " ");

/** What the head knows of a machine; what that says of itself stands apart, or could look like it. */
function about({ source, state, waited_s, invitation_s }) {
  if (state !== "waiting") return `It came from ${source}.`;
  const ends = invitation_s ? `ends in ${time(1000 * invitation_s)}` : "has ended";
  return `It came from ${source}, and waits for ${time(1000 * Math.max(1, waited_s))}. Its invitation ${ends}.`;
}

const says = ({ system, memory, addresses }) =>
  `It says of itself: ${system}, ${size(memory)} of memory, reached at ${addresses.join(" or ")}`;

function looks({ name, calls_itself, looks_like }) {
  if (looks_like && looks_like !== calls_itself) return `It calls itself ${calls_itself}, which looks like ${looks_like}.`;
  return name === calls_itself ? "" : `It calls itself ${calls_itself}, as another machine does.`;
}
