// The page: listens to the head, and hands what it hears to its parts.

import { ApiError, call, events, hasKey, setKey } from "./api.js";
import { Chat } from "./chat.js";
import { byId, keep, make, say } from "./dom.js";
import { few, time } from "./format.js";
import { Plots } from "./plot.js";
import { Requests } from "./requests.js";
import { Ring, isOpen } from "./ring.js";

const LONGEST_PAUSE = 4000;
const SILENCE = 6000; // an event comes every second; a head that says nothing for this long hangs

const ring = new Ring(byId("ring"), byId("ring-summary"), byId("ranks"));
const plots = new Plots(byId("plots"));
const requests = new Requests(announce);
const chat = new Chat(askForKey);

let told = ""; // the state that was last announced
let blamed = ""; // and what was in the way

/** Tell a screen reader, once. */
function announce(text) {
  say(byId("spoken"), text);
}

function notice(text) {
  const place = byId("notice");
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
  notice(why.length ? "" : faults.join(" "));
}

const reason = () =>
  make("li", {}, make("strong"), make("span", { class: "lasts" }), make("span", { class: "advice" }));

function setState(state, text) {
  byId("state").dataset.state = state;
  say(byId("state-text"), text);
  if (told && told !== text) announce(`The ring is ${text}.`);
  told = text;
}

/** Show one event. */
function show({ cluster, samples, over }) {
  say(byId("cluster"), cluster.cluster);
  say(byId("model"), cluster.model);
  say(byId("trust"), cluster.trust);
  say(byId("roster"), `${cluster.serial}, ${cluster.roster_left}`);
  say(byId("version"), cluster.version);
  say(byId("suite"), cluster.suite === "none" ? "no hops yet" : sealed(cluster));
  byId("suite").title = cluster.activations;
  document.title = `${cluster.model} · sealring`;
  if (cluster.draining) setState("waiting", "shutting down");
  else if (cluster.healthy) setState("good", "serving");
  else setState("bad", "not serving");
  showWhy(cluster);

  const { queued, prefill, decode } = cluster.rows;
  say(byId("now-tokens"), few(cluster.tokens_per_s));
  say(byId("now-prompt"), few(cluster.prompt_tokens_per_s));
  say(byId("now-queued"), queued);
  say(byId("now-prefill"), prefill);
  say(byId("now-decode"), decode);
  say(byId("now-hop"), cluster.hop_us ? time(cluster.hop_us.p50 / 1000) : "–");
  const { accepted, rejected } = cluster.guesses;
  const made = accepted + rejected;
  say(byId("now-guesses"), made ? `${Math.round((100 * accepted) / made)} %` : "–");
  byId("now-guesses").title = made ? `${accepted} of ${made} tokens that the head guessed` : "";
  ring.show(cluster);
  plots.add(samples);
  requests.show(cluster.requests, over);
  chat.serve(cluster.model, cluster.healthy);
}

function sealed(cluster) {
  if (isOpen(cluster)) return `${cluster.suite}, but for the sums: NOT SEALED`;
  if (cluster.collective) return `${cluster.suite}, from node to node`;
  return `${cluster.suite}${cluster.inner_seal ? ", twice" : ""}`;
}

/** Listen until the stream ends; throws when it cannot. */
async function listen() {
  const stop = new AbortController();
  let timer = 0;
  const watch = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stop.abort(), SILENCE);
  };
  try {
    watch();
    const response = await call("/v1/cluster/events", { signal: stop.signal });
    plots.clear(); // the first event has all of the last minutes again
    for await (const event of events(response)) {
      watch();
      show(event);
    }
  } finally {
    clearTimeout(timer);
  }
}

async function keepListening() {
  let pause = 500;
  for (;;) {
    const began = Date.now();
    let why = "The head has closed the connection";
    try {
      await listen();
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) {
        await askForKey();
        continue;
      }
      why = error instanceof ApiError ? error.message : "The head does not answer";
      const lost = error instanceof ApiError || error instanceof TypeError || error.name === "AbortError";
      if (!lost) console.error(error); // a fault of this page, whatever the head does
    }
    pause = Date.now() - began > LONGEST_PAUSE ? 500 : Math.min(2 * pause, LONGEST_PAUSE);
    setState("bad", "out of reach");
    chat.serve("", false);
    byId("why").hidden = true;
    notice(`${why.replace(/\.$/, "")}. Trying again.`);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

let asking = null;

/** Ask for a key; settles when there is one to try. */
function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    byId("key-wrong").hidden = !hasKey();
    byId("key").value = "";
    setState("waiting", "waiting for a key");
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
    dialog.showModal();
  });
  return asking;
}

// Without a key there is nothing to see behind the dialog, so Escape does not close it.
byId("key-dialog").addEventListener("cancel", (event) => event.preventDefault());
say(byId("api-url"), `${location.origin}/v1`);
keepListening();
