// Listens to the head: an event each second, or word that it is gone. It tries again by itself.

import { ApiError, Lost, call, events } from "./api.js";

const LONGEST_PAUSE = 4000;
const SILENCE = 4000; // an event comes every second; a head that says nothing for this long hangs
const LASTED = 4000; // a connection that held for so long was a good one

/** Listen for as long as the page is open. `on` has what to do: heard(event), opened(), lost(why), askForKey(). */
export async function listen(on) {
  let pause = 500;
  for (;;) {
    const began = Date.now();
    let why = "The head closed the connection.";
    try {
      await once(on);
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) {
        await on.askForKey();
        continue;
      }
      why = error.message;
      if (!(error instanceof ApiError || error instanceof Lost)) {
        console.error(error); // a fault of this page, whatever the head does
        why = "This page failed.";
      }
    }
    pause = Date.now() - began > LASTED ? 500 : Math.min(2 * pause, LONGEST_PAUSE);
    on.lost(why);
    await rest(pause);
  }
}

/** Listen until the stream ends; throws when it cannot. */
async function once(on) {
  const stop = new AbortController();
  let timer = 0;
  const watch = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stop.abort(new Lost("The head does not answer.")), SILENCE);
  };
  try {
    watch();
    const response = await call("/v1/cluster/events", { signal: stop.signal });
    on.opened(); // the first event has all of the last minutes again
    for await (const event of events(response)) {
      watch();
      on.heard(event);
    }
  } finally {
    clearTimeout(timer);
  }
}

/** Wait, unless something says that the head may be there now. */
function rest(ms) {
  return new Promise((resolve) => {
    const timer = setTimeout(over, ms);
    addEventListener("online", over);
    document.addEventListener("visibilitychange", over);
    function over() {
      clearTimeout(timer);
      removeEventListener("online", over);
      document.removeEventListener("visibilitychange", over);
      resolve();
    }
  });
}
