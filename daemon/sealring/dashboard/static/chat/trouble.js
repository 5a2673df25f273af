// Why there is no answer, or only a part of one, in words, and what to do about it.

import { ApiError, Lost } from "../api.js";

const ADVICE = {
  context_length_exceeded:
    "Shorten the message, ask for fewer tokens in this conversation's settings, or begin a new conversation.",
  text_limit_exceeded: "Shorten the message, or begin a new conversation.",
  request_too_large: "Shorten the message, or begin a new conversation.",
  rate_limit_exceeded: "Others ask too. Ask again when the time is up.",
  overloaded: "Others ask too. Ask again when the time is up.",
  ring_not_ready: "The ring's view says what it waits for. Ask again when it serves.",
  no_majority: "Open the page of another machine, or start those that are away.",
  not_head: "Open the page of the node that it names.",
  shutting_down: "The head is being stopped. Ask again when it is back.",
  model_not_found: "The ring has changed its model. Ask again: the new one will be asked.",
  request_cancelled: "It was cancelled in the ring's view or by another client. Ask again if it was not you.",
  timeout: "Ask for fewer tokens in this conversation's settings, or set a longer timeout in the head's config.",
  generation_failed: "Ask again. If it comes again, the ring's view and the log of its nodes say more.",
  internal_error: "Ask again. If it comes again, the head's log says more.",
  invalid_api_key: "Give a key that the head knows, then ask again.",
  unsupported_parameter: "Change this conversation's settings, then ask again.",
  invalid_value: "Change the message or this conversation's settings, then ask again.",
};

/** `error` as {what, advice, until}: texts, and from when on it makes sense to ask again, in ms of the clock. */
export function explain(error) {
  if (error instanceof ApiError) {
    const advice = ADVICE[error.code] ?? (error.status >= 500 ? "Ask again." : "Change the message, then ask again.");
    return { what: error.message, advice, until: error.wait ? Date.now() + 1000 * error.wait : 0 };
  }
  if (error instanceof Lost) {
    return {
      what: `The connection was lost before the answer was complete. ${error.message}`,
      advice: "What had come stays here. Ask again when the head is back.",
      until: 0,
    };
  }
  if (error instanceof SyntaxError) {
    return { what: "The tools in this conversation's settings are no JSON.", advice: "Change them, then ask again.", until: 0 };
  }
  console.error(error); // a fault of this page
  return { what: `This page failed: ${error.message}.`, advice: "Reload it, then ask again.", until: 0 };
}

/** Of an answer whose page was closed. */
export const ABANDONED = {
  what: "The page was closed before the answer was complete.",
  advice: "What had come stays here. Ask again for all of it.",
  until: 0,
};
