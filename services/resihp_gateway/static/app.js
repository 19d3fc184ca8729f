// The page: one stream of facts about one job, and what is drawn from them.

import { html, render, useEffect, useMemo, useState } from "./vendor/htm-preact-standalone.module.js";
import { get, token } from "./api.js";
import { ChangePage } from "./change.js";
import { Changes } from "./changes.js";
import { Throughput } from "./chart.js";
import { Cluster, decode } from "./cluster.js";
import { Device } from "./device.js";
import { Feed } from "./feed.js";
import { HistoryPage } from "./history.js";
import { Operate } from "./operate.js";
import { follow } from "./stream.js";
import { WhatIf } from "./whatif.js";
import { arrows, needsAttention, percent, places, rate } from "./words.js";

const MAX_POINTS = 1000;
const OVER = new Set(["finished", "failed", "stopped"]);
const EMPTY = { points: [], incidents: [], reconfigurations: [] };

function App() {
  const [route, setRoute] = useState(location.hash || "#/");
  const [jobs, setJobs] = useState(null);
  const [chosen, setChosen] = useState(new URLSearchParams(location.search).get("job"));
  const [me, setMe] = useState(null);
  const [locked, setLocked] = useState("");
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  const [turn, setTurn] = useState(0);

  useEffect(() => {
    const changed = () => (setRoute(location.hash || "#/"), scrollTo(0, 0));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  useEffect(() => {
    let again = 0;
    const load = async () => {
      try {
        setMe(await get("/api/v1/me"));
        const found = await get("/api/v1/jobs");
        setLocked("");
        setJobs(found);
        again = setTimeout(load, found.length ? 10000 : 1500);
      } catch (error) {
        if (error.status === 401) setLocked(error.message);
        else again = setTimeout(load, 1500);
      }
    };
    load();
    return () => clearTimeout(again);
  }, [turn]);

  const job = chosen ?? newest(jobs)?.job ?? null;
  function switchTheme() {
    const next = theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("resihp-theme", next);
    setTheme(next);
  }
  function choose(name) {
    history.replaceState(null, "", `?job=${name}${location.hash}`);
    setChosen(name);
  }
  if (locked) return html`<${Login} reason=${token.get() ? locked : ""} done=${() => setTurn(turn + 1)} />`;
  return html`<${Job} key=${job} job=${job} jobs=${jobs} choose=${choose} route=${route} me=${me} theme=${theme} switchTheme=${switchTheme} />`;
}

const newest = (jobs) => jobs?.findLast((j) => !OVER.has(j.state)) ?? jobs?.at(-1);

function Job({ job, jobs, choose, route, me, theme, switchTheme }) {
  const [facts, setFacts] = useState(EMPTY);
  const [link, setLink] = useState({ state: "connecting", at: null });
  const [selected, setSelected] = useState(null);
  useEffect(() => {
    if (!job) return;
    return follow(
      `/api/v1/live?job=${job}`,
      (name, value) => setFacts((old) => ({ ...old, ...(name === "points" ? { points: merge(old.points, value) } : { [name]: value }) })),
      (state) => setLink((old) => (state === old.state && state === "lost" ? old : { state, at: state === "live" ? Date.now() : old.at })),
    );
  }, [job]);
  const known = useMemo(() => (facts.map ? places(facts.map) : new Map()), [facts.map]);
  const codes = useMemo(() => (facts.health ? decode(facts.health) : new Uint8Array()), [facts.health]);
  const stale = link.state === "lost" ? "The gateway cannot be reached" : facts.stale ? "The database cannot be reached" : "";
  const [, kind, id] = route.split("/");
  return html`<${Header} ...${{ job, jobs, choose, facts, codes, link, stale, theme, switchTheme, route }} />
    ${stale &&
    html`<p class="banner" role="alert">
      ${stale}. What you see is ${link.at ? `from ${new Date(link.at).toLocaleTimeString("en-GB")}` : "old"}; the training may still run. Trying again…
    </p>`}
    <main id="main" tabindex="-1" class=${stale ? "stale" : ""}>
      ${!job && html`<${Welcome} jobs=${jobs} />`}
      ${job && kind === "change" && html`<${ChangePage} id=${id} known=${known} version=${facts.reconfigurations} />`}
      ${job && kind === "history" && html`<${HistoryPage} job=${job} known=${known} />`}
      ${job && !facts.job && !stale && html`<section class="card welcome" role="status"><h1>${link.state === "refused" ? "This job cannot be shown" : "Loading…"}</h1></section>`}
      ${job && facts.job && (!kind || kind === "overview") && html`<${Overview} ...${{ job, facts, known, codes, selected, setSelected, me, theme }} />`}
    </main>`;
}

function merge(old, { whole, points }) {
  if (whole) return points;
  const last = old.at(-1)?.[0] ?? 0;
  return [...old, ...points.filter((p) => p[0] > last)].slice(-MAX_POINTS);
}

function Overview({ job, facts, known, codes, selected, setSelected, me, theme }) {
  const { map, health, rates, points, incidents, reconfigurations: changes, control } = facts;
  return html`<div class="overview">
    <div class="left">
      <${Cluster} map=${map} health=${health} known=${known} selected=${selected} onSelect=${setSelected} />
      <${Throughput} points=${points} rates=${rates} changes=${changes} incidents=${incidents} theme=${theme} />
      <${Changes} changes=${changes.slice(0, 12)} incidents=${incidents} known=${known} more=${html`<a class="more" href="#/history">all, with filters</a>`} />
    </div>
    <div class="right">
      ${selected !== null && html`<${Device} job=${job} rank=${selected} known=${known} code=${codes[selected]} version=${changes} close=${() => setSelected(null)} />`}
      <${Feed} incidents=${incidents} changes=${changes} known=${known} onSelect=${setSelected} />
      <${WhatIf} job=${job} selected=${selected} known=${known} />
      <${Operate} job=${job} control=${control} me=${me} selected=${selected} stopped=${selected !== null && codes[selected] === 255} ended=${OVER.has(facts.job?.state)} />
    </div>
  </div>`;
}

function Header({ job, jobs, choose, facts, codes, link, stale, theme, switchTheme, route }) {
  const record = facts.job;
  const { now, healthy, bound } = facts.rates ?? {}; // the bound comes from medians: noise may lie above it
  const p = record?.parallel;
  return html`<header class="top">
    <a class="brand" href="#/" aria-label="ResiHP, overview"><img src="icon.svg" alt="" width="26" height="26" /><b>ResiHP</b></a>
    ${jobs?.length > 1
      ? html`<label class="job"><span class="visually-hidden">Job</span><select value=${job} onChange=${(e) => choose(e.target.value)}>${jobs.map((j) => html`<option key=${j.job}>${j.job}</option>`)}</select></label>`
      : html`<b class="job">${job ?? ""}</b>`}
    <p class="verdict ${tone(facts, codes)}" role="status">${verdict(facts, codes)}</p>
    <nav aria-label="Pages">
      <a href="#/" aria-current=${route === "#/" ? "page" : null}>Overview</a>
      <a href="#/history" aria-current=${route.startsWith("#/history") ? "page" : null}>History</a>
    </nav>
    <dl class="numbers">
      ${now !== undefined &&
      html`<div><dt>of healthy ${percent(now, healthy)}, ${now >= bound ? "at the bound" : `of bound ${percent(now, bound)}`}</dt><dd>${rate(now)} <small>tok/s</small></dd></div>`}
      ${record &&
      html`<div><dt>${record.state}${record.virtual_clock ? ", virtual clock" : ""}</dt><dd>${record.committed} <small>${record.endless ? "" : `of ${record.iterations} `}iterations</small></dd></div>`}
      ${facts.map && html`<div><dt>${codes.length} devices, epoch ${facts.map.epoch}</dt><dd>${shape(facts.map, p)}</dd></div>`}
    </dl>
    <span class="link ${stale ? "lost" : link.state}"><i aria-hidden="true"></i>${stale ? "Stale" : { live: "Live", connecting: "Connecting", refused: "Refused", lost: "Lost" }[link.state]}</span>
    ${token.get() && html`<button class="quiet" onClick=${() => (token.set(null), location.reload())}>Sign out</button>`}
    <button class="quiet" onClick=${switchTheme} aria-label="Switch to the ${theme === "dark" ? "light" : "dark"} theme">◐</button>
  </header>`;
}

/** `DP 2 × PP 2 × TP 2`, degrees as they are now; a range where groups differ. */
function shape(map) {
  const range = (values) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return low === high ? low : `${low}–${high}`;
  };
  const active = map.replicas.filter((r) => r.stages.length);
  if (!active.length) return "–";
  return `DP ${active.length} × PP ${range(active.map((r) => r.stages.length))} × TP ${range(active.flatMap((r) => r.stages.map((s) => s.ranks.length)))}`;
}

function open(facts) {
  return facts.reconfigurations.find((c) => c.status === "planned" && c.mode !== "initial");
}

function tone(facts, codes) {
  if (!facts.job) return "";
  if (facts.job.state === "failed") return "bad";
  if (open(facts)) return "busy";
  return codes.some((c) => needsAttention(c)) ? "warn" : "good";
}

function verdict(facts, codes) {
  const record = facts.job;
  if (!record) return "";
  if (record.state === "failed") return `Failed: ${record.reason}`;
  if (record.state === "submitted" || record.state === "starting") return record.state === "starting" ? "Starting" : "Waits for devices";
  const change = open(facts);
  if (change) return `Reconfiguring: ${arrows(change.difference || change.reason)}`;
  const count = codes.filter((c) => needsAttention(c)).length;
  const prefix = record.state === "running" ? "" : `${record.state[0].toUpperCase()}${record.state.slice(1)}. `;
  if (!count) return `${prefix}All ${codes.length} devices healthy`;
  return `${prefix}${count} of ${codes.length} devices need${count === 1 ? "s" : ""} attention`;
}

function Welcome({ jobs }) {
  return html`<section class="card welcome">
    <h1>${jobs === null ? "Connecting…" : "No job yet"}</h1>
    ${jobs !== null && html`<p>Start one with <code>resihp train examples/small.toml</code>; it appears here by itself.</p>`}
  </section>`;
}

function Login({ reason, done }) {
  const [value, setValue] = useState("");
  return html`<main id="main" class="login"><form class="card" onSubmit=${(e) => (e.preventDefault(), token.set(value.trim()), done())}>
    <h1><img src="icon.svg" alt="" width="30" height="30" /> ResiHP</h1>
    <label>Access token <input type="password" autocomplete="off" value=${value} onInput=${(e) => setValue(e.target.value)} required autofocus /></label>
    ${reason && html`<p class="refusal" role="alert">${reason}</p>`}
    <button class="primary">Open the dashboard</button>
    <p class="hint">From <code>resihp token create NAME</code>. It is kept until this tab is closed.</p>
  </form></main>`;
}

render(html`<${App} />`, document.getElementById("app"));
