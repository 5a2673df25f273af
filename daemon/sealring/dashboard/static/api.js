// The head's API, with the key of whoever looks: calls, and streams of server-sent events.

const KEY = "sealring-key";

/** What the API said no with. `wait` is how many seconds it asks to be left alone, if it does. */
export class ApiError extends Error {
  constructor(status, message, code = "", wait = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.wait = wait;
  }
}

/** The head went away, or fell silent. */
export class Lost extends Error {}

/** Remember a key for as long as this tab is open. */
export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** Whether there is a key that could be wrong. */
export const hasKey = () => sessionStorage.getItem(KEY) !== null;

/** Call the API; throws ApiError, Lost, or what the signal was aborted with. */
export async function call(path, { method = "GET", body, signal, keepalive, headers: more } = {}) {
  const headers = { ...more };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const settings = { method, headers, signal, keepalive, cache: "no-store" };
  if (body !== undefined) settings.body = JSON.stringify(body);
  const response = await fetch(path, settings).catch(lost);
  if (!response.ok) throw await refusal(response);
  return response;
}

/** Fetch and streams throw a TypeError where the other side is gone. */
function lost(error) {
  throw error instanceof TypeError ? new Lost("The head does not answer.") : error;
}

async function refusal(response) {
  const after = Number(response.headers.get("retry-after") || NaN);
  const wait = Number.isFinite(after) ? after : null;
  try {
    const { message, code } = (await response.json()).error;
    return new ApiError(response.status, message, code ?? "", wait);
  } catch {
    return new ApiError(response.status, `The head answered ${response.status}.`, "", wait);
  }
}

/**
 * The events of a stream, parsed. It throws Lost where the stream breaks; with `whole`, also where it ends
 * without saying so. `seen` hears the id of each event that has one.
 */
export async function* events(response, whole = false, seen = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(lost);
      if (done) {
        if (whole) throw new Lost("The head closed the connection.");
        return;
      }
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const field = (name) => part.split("\n").find((line) => line.startsWith(name))?.slice(name.length);
        const data = field("data: ");
        const id = field("id: ");
        if (id) seen(id);
        if (data === "[DONE]") return;
        if (data) yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
