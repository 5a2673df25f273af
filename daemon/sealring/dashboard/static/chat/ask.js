// Asks the head for an answer, and fills a message with it as it comes.

import { ApiError, call, events } from "../api.js";
import { isOpen, place } from "../ring.js";

const PATIENCE = 2000;

/**
 * Fill `message` with the answer to `body`, and call `changed` after each piece. Throws ApiError, Lost, or what
 * `signal` was aborted with; the message then has what had come.
 */
export async function ask(message, body, signal, changed) {
  const began = performance.now();
  const response = await call("/v1/chat/completions", { method: "POST", signal, body });
  message.id = response.headers.get("x-request-id") ?? "";
  changed();
  for await (const event of events(response, true)) {
    if (event.error) throw new ApiError(0, event.error.message, event.error.code ?? "");
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
    changed();
  }
  message.end ||= "stop";
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
