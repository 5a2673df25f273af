// The page: two views, of the chat and of the ring, and the head that feeds both.

import { Chat } from "./chat/chat.js";
import { byId, keep, make, say } from "./dom.js";
import { few } from "./format.js";
import { listen } from "./head.js";
import { decorate } from "./icons.js";
import { askForKey } from "./key.js";
import { Monitor } from "./monitor.js";
import { Newcomers } from "./newcomers.js";

const NEWS = 6000; // how long good news stays

decorate(document);
const monitor = new Monitor(announce);
const newcomers = new Newcomers(announce);
const chat = new Chat({ announce, askForKey: ask });

let told = ""; // the state that was last announced
let blamed = ""; // and what was in the way
let away = false; // whether the head is gone
let ending = false; // whether it said that it is being stopped

/** Tell a screen reader, once. */
function announce(text) {
  say(byId("spoken"), text);
}

function notice(text, good = false) {
  const place = byId("notice");
  place.classList.toggle("good", good);
  say(place, text);
  place.hidden = !text;
}

/** Why the ring does not serve, or is slow: what, for how long, and what to do. */
function showWhy({ why, starved, faults }) {
  const list = byId("why");
  const shown = why.length ? why : starved; // what does not serve for a starved engine says so
  list.hidden = !shown.length;
  keep(list, shown, (each) => `${each.cause} ${each.rank}`, reason, (element, each) => {
    const [what, lasts, advice] = element.children;
    say(what, each.what);
    say(lasts, each.lasts);
    say(advice, each.advice);
  });
  const known = why.map((each) => each.what.split(";")[0]).join("; "); // without what runs
  if (known && known !== blamed) announce(`The ring does not serve: ${known}.`);
  blamed = known;
  if (!byId("notice").classList.contains("good")) notice(why.length ? "" : faults.join(" "));
}

const reason = () =>
  make("li", {}, make("strong"), make("span", { class: "lasts" }), make("span", { class: "advice" }));

function setState(state, text) {
  byId("state").dataset.state = state;
  say(byId("state-text"), text);
  if (told && told !== text) announce(`The ring is ${text}.`);
  told = text;
}

/** The names of who is left out, as one, if someone is. */
const without = ({ degraded = [] }) =>
  degraded.length ? [degraded.map((each) => each.name).join(", ")] : [];

/** Show one event. */
function heard(event) {
  const { cluster } = event;
  if (away) welcome();
  ending = cluster.draining;
  say(byId("serves"), cluster.model);
  const waits = cluster.newcomers.some((each) => each.state === "waiting");
  document.title = `${waits ? "A machine waits to join" : cluster.model} · sealring`;
  say(byId("rate-now"), cluster.tokens_per_s ? `${few(cluster.tokens_per_s)} tokens/s` : "");
  if (cluster.draining) setState("waiting", "shutting down");
  else if (cluster.healthy) setState("good", ["serving", ...without(cluster)].join(" without "));
  else setState("bad", "not serving");
  showWhy(cluster);
  monitor.show(event);
  chat.serve(cluster);
  newcomers.show(cluster.newcomers);
}

function lost(why) {
  away = true;
  setState("bad", "out of reach");
  say(byId("rate-now"), "");
  byId("why").hidden = true;
  const then = ending
    ? "The head was stopped. This page goes on once somebody has started it again"
    : `${why.replace(/\.$/, "")}. Trying again by itself`;
  notice(`${then}; what you have typed stays here.`);
  monitor.lost();
  chat.lost();
  newcomers.lost();
}

function welcome() {
  away = false;
  notice("Connected again.", true);
  setTimeout(() => {
    if (byId("notice").classList.contains("good")) notice("");
  }, NEWS);
}

function ask() {
  setState("waiting", "waiting for a key");
  notice(""); // whoever asks for a key is reached
  return askForKey();
}

/** Show what the address says: `#ring`, or a conversation. */
function route() {
  const place = location.hash.slice(1);
  const ring = place === "ring";
  byId("ring-view").hidden = !ring;
  byId("chat-view").hidden = ring;
  byId("to-ring").ariaCurrent = ring ? "page" : null;
  byId("to-chat").ariaCurrent = ring ? null : "page";
  document.documentElement.dataset.view = ring ? "ring" : "chat";
  if (!ring) chat.open(place);
  else scrollTo(0, 0);
}

/** On a phone, the part of the screen that its keyboard leaves. */
function fit() {
  const { height, offsetTop } = visualViewport;
  const { style } = document.documentElement;
  style.setProperty("--screen", `${height}px`);
  style.setProperty("--screen-top", `${offsetTop}px`);
}

if (globalThis.visualViewport && matchMedia("(pointer: coarse)").matches) {
  visualViewport.addEventListener("resize", fit);
  visualViewport.addEventListener("scroll", fit);
  fit();
}

byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  if (location.hash === "#ring") location.hash = byId("to-chat").hash;
  setTimeout(() => byId("chat-text").focus());
});
addEventListener("hashchange", route);
route();
listen({ heard, lost, opened: () => monitor.clear(), askForKey: ask });
