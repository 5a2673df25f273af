// The head's API, with the key of whoever looks: calls, and streams of server-sent events.

const KEY = "sealring-key";

/** What the API said no with. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Remember a key for as long as this tab is open. */
export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** Whether there is a key that could be wrong. */
export const hasKey = () => sessionStorage.getItem(KEY) !== null;

/** Call the API; throws ApiError, or whatever fetch does. */
export async function call(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(path, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
    cache: "no-store",
  });
  if (!response.ok) throw new ApiError(response.status, await reason(response));
  return response;
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The head answered ${response.status}.`;
  }
}

/** The events of a stream, parsed, until it ends. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.startsWith("data: ") ? part.slice(6) : "";
        if (data && data !== "[DONE]") yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
