// Server-sent events over fetch: unlike EventSource it can send a token, and it notices a server that hangs.

import { headers, Refused } from "./api.js";

const SILENCE_MS = 6500; // the server says something at least every 4 s
const RETRY_MS = 1000;
const HIDDEN_MS = 20000; // a hidden tab gives its connection back: browsers allow six per host

/** Calls `onFact(name, value)` for every event and `onState("live" | "lost" | "refused", error)`. Returns `stop`. */
export function follow(url, onFact, onState) {
  let control = null;
  let watchdog = 0;
  let retry = 0;
  let hide = 0;
  let stopped = false;

  async function open() {
    clearTimeout(retry);
    if (stopped || control) return;
    const own = (control = new AbortController());
    try {
      alive(own);
      const response = await fetch(url, { headers: headers(), signal: own.signal, cache: "no-store" });
      if (response.status === 401 || response.status === 403 || response.status === 404) {
        onState("refused", new Refused(response.status, (await response.json()).detail));
        stop();
        return;
      }
      if (!response.ok) throw new Error(`status ${response.status}`);
      await read(response.body.getReader(), own);
      throw new Error("the stream ended");
    } catch (error) {
      if (control !== own) return;
      close();
      onState("lost", error);
      retry = setTimeout(open, RETRY_MS);
    }
  }

  async function read(reader, own) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done || control !== own) return;
      alive(own);
      rest += decoder.decode(value, { stream: true });
      const frames = rest.split("\n\n");
      rest = frames.pop();
      for (const frame of frames) handle(frame);
      onState("live");
    }
  }

  function handle(frame) {
    let name = "message";
    let data = null;
    for (const line of frame.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data = line.slice(6);
    }
    if (data !== null) onFact(name, JSON.parse(data));
  }

  function alive(own) {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => {
      if (control !== own) return;
      close();
      onState("lost", new Error("the gateway is silent"));
      retry = setTimeout(open, RETRY_MS);
    }, SILENCE_MS);
  }

  function close() {
    clearTimeout(watchdog);
    const old = control;
    control = null;
    old?.abort();
  }

  function stop() {
    stopped = true;
    clearTimeout(retry);
    clearTimeout(hide);
    close();
    document.removeEventListener("visibilitychange", visibility);
  }

  function visibility() {
    clearTimeout(hide);
    if (document.hidden) hide = setTimeout(close, HIDDEN_MS);
    else open();
  }

  document.addEventListener("visibilitychange", visibility);
  open();
  return stop;
}
