// Asks the head for an answer, and fills a message with it as it comes. A connection that breaks is made again: the
// head goes on with the answer meanwhile, and gives what follows the last event that has come. So does a page that is
// loaded again, with what it has kept of the message.

import { ApiError, Lost, call, events } from "../api.js";
import { isOpen, place } from "../ring.js";

const PATIENCE = 2000;
const COMES_BACK = 60_000; // the head goes on for as long without anybody who reads
const LONGEST_PAUSE = 2000;

/** What a message has of its question while its answer comes: under it the head is asked, and asked again. */
export const asking = (model) => ({ model, key: hex(16), name: `page-${hex(8)}`, last: "" });

/**
 * Fill `message` with the answer to `body`, and call `changed` after each piece. Throws ApiError, Lost, or what
 * `signal` was aborted with; the message then has what had come. `link` gets a function `cut` that breaks the present
 * connection.
 */
export async function ask(message, body, signal, changed, link) {
  const { asked } = message;
  const headers = { "idempotency-key": asked.key, "x-request-id": asked.name };
  const began = performance.now();
  let last = asked.last; // the id of the last event
  let over = 0;
  let pause = 0;
  const withdraw = () => {
    if (message.id && !last) return; // it ends with its connection
    const place = last ? `streams/${message.id}` : `requests/${asked.name}`;
    call(`/v1/${place}`, { method: "DELETE", keepalive: true }).catch(() => {});
  };
  const once = async () => {
    const connection = new AbortController();
    const stop = () => connection.abort(signal.reason);
    link.cut = () => connection.abort(new Lost("The head does not answer."));
    signal.addEventListener("abort", stop);
    try {
      signal.throwIfAborted();
      const settings = { signal: connection.signal };
      const response = last
        ? await call(`/v1/streams/${message.id}`, { ...settings, headers: { "last-event-id": last } })
        : await call("/v1/chat/completions", { ...settings, method: "POST", body, headers });
      changed();
      for await (const event of events(response, true, (id) => (last = id))) {
        take(message, event, began);
        asked.last = last; // at once, as both are kept together
        over = 0; // it goes on
        changed();
      }
    } finally {
      signal.removeEventListener("abort", stop);
    }
  };
  try {
    for (;;) {
      try {
        await once();
        break;
      } catch (error) {
        if (error instanceof ApiError && error.code === "stream_not_found") throw new Lost("The head has the rest no longer.");
        const breaks = error instanceof Lost || (error instanceof ApiError && error.status >= 500);
        if (!last || !breaks) throw error;
        if (!over) [over, pause] = [performance.now() + COMES_BACK, 100];
        if (performance.now() > over) throw error;
        await rest(pause, signal);
        pause = Math.min(2 * pause, LONGEST_PAUSE);
      }
    }
  } catch (error) {
    if (signal.aborted) withdraw();
    throw error;
  }
  message.end ||= "stop";
}

/** Add what an event says to the message. */
function take(message, event, began) {
  message.id ||= event.id ?? "";
  if (event.error) {
    const { message: why, code = "" } = event.error;
    if (event.resumable && code !== "taken_over") throw new Lost(why); // at a follower, which has lost the head
    throw new ApiError(0, why, code);
  }
  for (const { delta, finish_reason: end } of event.choices) {
    if (delta.reasoning_content || delta.content || delta.tool_calls) {
      message.stats ??= { first_ms: performance.now() - began };
    }
    message.reasoning += delta.reasoning_content ?? "";
    message.content += delta.content ?? "";
    for (const { id, function: made } of delta.tool_calls ?? []) {
      if (id) message.calls.push({ id, name: made.name, arguments: "" });
      message.calls.at(-1).arguments += made.arguments ?? "";
    }
    message.end = end ?? message.end;
  }
}

/** So many random bytes in words of a header; pages without TLS have no `crypto.randomUUID`. */
function hex(bytes) {
  return [...crypto.getRandomValues(new Uint8Array(bytes))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Wait, at most until the signal is aborted. */
function rest(ms, signal) {
  return new Promise((resolve) => {
    setTimeout(resolve, ms);
    signal.addEventListener("abort", resolve, { once: true });
  });
}

/** What the answer cost, and who gave it, as far as the head can tell. */
export async function cost(message, cluster) {
  message.stats ??= {};
  const { stats } = message;
  stats.model = cluster?.model ?? "";
  stats.ranks = (cluster?.ranks ?? []).filter(({ ready }) => ready).map((rank) => ({ name: rank.name, layers: place(rank) }));
  stats.open = Boolean(cluster && isOpen(cluster));
  if (!message.id) return;
  try {
    const signal = AbortSignal.timeout(PATIENCE); // a head that hangs does not hold the answer up
    const response = await call(`/v1/requests/${encodeURIComponent(message.id)}/trace`, { signal });
    const trace = await response.json();
    stats.tokens = trace.tokens;
    stats.rate = trace.tokens_per_s;
    stats.prompt = trace.prompt_tokens;
    stats.known = trace.cached_tokens;
    stats.first_ms = trace.phases_ms.first_token ?? stats.first_ms;
  } catch {
    // The cost of an answer is no news if the head cannot tell it.
  }
}
