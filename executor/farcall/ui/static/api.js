// Client of the web UI's server: token, requests and event streams.

const KEY = "farcall.token";
let token = "";
let refused = () => {};

/** A failed request; `status` is 0 if there was no response. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Returns the token from the address, which it removes there, or the stored one. */
export function takeToken() {
  const found = /^#(?:\/?[?&]?)token=([^&]+)/.exec(location.hash);
  if (found) {
    keepToken(decodeURIComponent(found[1]));
    history.replaceState(null, "", `${location.pathname}${location.search}#/`);
  } else token = stored();
  return token;
}

/** Stores the token for the next visit; an empty one deletes it. */
export function keepToken(said) {
  token = said;
  try {
    if (said) localStorage.setItem(KEY, said);
    else localStorage.removeItem(KEY);
  } catch {
    // Without storage it lasts as long as the page.
  }
}

function stored() {
  try {
    return localStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

/** Sets the callback for a rejected token. */
export function onRefused(f) {
  refused = f;
}

async function ask(path, options = {}) {
  let reply;
  try {
    reply = await fetch(path, {
      ...options,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      headers: { ...options.headers, Authorization: `Bearer ${token}` },
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("farcall ui does not answer; is it still running?", 0);
  }
  if (reply.ok) return reply;
  const said = await reply.json().catch(() => ({}));
  const error = new ApiError(said.error || `the server answered ${reply.status}`, reply.status);
  if (reply.status === 401) refused(error.message);
  throw error;
}

/** Gets JSON. */
export async function get(path, signal) {
  return (await ask(path, { signal })).json();
}

/** Sends JSON. */
export async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return (await ask(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
}

/** Returns a path with encoded parts. */
export const path = (...parts) => `/api/${parts.map(encodeURIComponent).join("/")}`;

/**
 * Follows a stream of events until it is closed, and asks again when it breaks off.
 * @param {string} address
 * @param {object} on one function per event's name; `open` at the beginning of each stream,
 *   `broken` with the error when one breaks off; `end`, if it comes, ends all.
 * @returns {{close: function}}
 */
export function follow(address, on) {
  const stop = new AbortController();
  (async () => {
    let wait = 500;
    while (!stop.signal.aborted) {
      try {
        const reply = await ask(address, { signal: stop.signal, headers: { Accept: "text/event-stream" } });
        on.open?.();
        for await (const { event, data } of events(reply.body)) {
          if (stop.signal.aborted) return;
          wait = 500;
          on[event]?.(JSON.parse(data));
          if (event === "end") return;
        }
        throw new ApiError("farcall ui closed the connection", 0);
      } catch (error) {
        if (stop.signal.aborted) return;
        on.broken?.(error);
        // A retry would not change these.
        if ([400, 401, 403, 404, 409].includes(error.status)) return;
      }
      await pause(wait * (0.75 + Math.random() / 2), stop.signal);
      wait = Math.min(wait * 2, 15000);
    }
  })();
  return { close: () => stop.abort() };
}

function pause(ms, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });
}

// https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = "message";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      // A carriage return at the end may be the first half of a line break.
      const text = rest + value;
      const whole = text.endsWith("\r") ? text.slice(0, -1) : text;
      const lines = whole.split(/\r\n|\n|\r/);
      rest = lines.pop() + text.slice(whole.length);
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield { event, data: data.join("\n") };
          event = "message";
          data = [];
          continue;
        }
        const colon = line.indexOf(":");
        const field = colon < 0 ? line : line.slice(0, colon);
        const said = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "event") event = said;
        else if (field === "data") data.push(said);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
