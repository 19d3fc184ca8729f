// The whole history with filters, page by page, and the audit trail.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-standalone.module.js";
import { get, page } from "./api.js";
import { Changes } from "./changes.js";
import { KIND_NAMES, arrows, kindWord, moment, rate } from "./words.js";

const EMPTY = { status: "", mode: "", kind: "", device: "", since: "", until: "" };
const STATUSES = ["applied", "planned", "rejected", "superseded"];
const MODES = ["initial", "recovery", "planned"];

/** The query of a filter; times are the reader's, the API's are UTC. */
function query(job, filter) {
  const chosen = Object.entries(filter)
    .filter(([, value]) => value !== "")
    .map(([name, value]) => [name, name === "since" || name === "until" ? new Date(value).toISOString() : value]);
  return new URLSearchParams([["job", job], ["sort", "newest"], ["limit", "50"], ...chosen]);
}

/** Incidents behind these changes: opened before them, so the newest ones before the newest change. */
async function causesOf(job, changes) {
  if (!changes.some((c) => c.incident_id)) return [];
  const until = new Date(Date.parse(changes[0].created_at) + 1000).toISOString();
  return get(`/api/v1/incidents?${new URLSearchParams({ job, until, sort: "newest", limit: "200" })}`);
}

export function HistoryPage({ job, known }) {
  const [filter, setFilter] = useState(EMPTY);
  const [shown, setShown] = useState({ rows: [], incidents: [], next: null, error: "", loaded: false });
  const newest = useRef(0); // an answer that was overtaken by a newer question is dropped
  async function load(path, before) {
    const question = ++newest.current;
    let answer;
    try {
      const found = await page(path);
      const incidents = await causesOf(job, found.rows);
      answer = { rows: [...before.rows, ...found.rows], incidents: [...before.incidents, ...incidents], next: found.next, error: "", loaded: true };
    } catch (problem) {
      answer = { ...before, error: problem.message, loaded: true };
    }
    if (question === newest.current) setShown(answer);
  }
  useEffect(() => {
    load(`/api/v1/reconfigurations?${query(job, filter)}`, { rows: [], incidents: [], next: null });
    return () => void newest.current++;
  }, [job, filter]);
  return html`${shown.error && html`<p class="refusal" role="alert">${shown.error}</p>`}
    <${Changes} changes=${shown.rows} incidents=${shown.incidents} known=${known} title="History" more=${html`<${Filters} filter=${filter} set=${setFilter} />`}
      none=${shown.loaded ? (filter === EMPTY ? "No plan yet." : "No change fits these filters.") : "Loading…"} />
    ${shown.next && html`<p class="center"><button onClick=${() => load(shown.next, shown)}>Older changes</button></p>`}
    <${Decisions} job=${job} />
    <${Audit} job=${job} />`;
}

function Filters({ filter, set }) {
  const change = (name) => (e) => {
    if (e.target.validity.valid) set({ ...filter, [name]: e.target.value.trim() });
  };
  const select = (name, options, word = (o) => o) => html`<label>${name}
    <select value=${filter[name]} onChange=${change(name)}>
      <option value="">any</option>${options.map((o) => html`<option key=${o} value=${o}>${word(o)}</option>`)}
    </select></label>`;
  const time = (name) => html`<label>${name} <input type="datetime-local" value=${filter[name]} onChange=${change(name)} /></label>`;
  return html`<form class="filters" aria-label="Filters" onSubmit=${(e) => e.preventDefault()}>
    ${select("status", STATUSES)} ${select("mode", MODES)} ${select("kind", KIND_NAMES, kindWord)}
    <label>device <input inputmode="numeric" pattern="[0-9]{0,6}" placeholder="rank" value=${filter.device} onInput=${change("device")} /></label>
    ${time("since")} ${time("until")}
    <button type="button" class="quiet" disabled=${filter === EMPTY} onClick=${() => set(EMPTY)}>Clear</button>
  </form>`;
}

function Decisions({ job }) {
  const [rows, setRows] = useState([]);
  useEffect(() => {
    get(`/api/v1/jobs/${job}/decisions?limit=50`).then(setRows, () => setRows([]));
  }, [job]);
  return html`<section class="card" aria-labelledby="decisions-title">
    <header><h2 id="decisions-title">Decisions</h2><p class="hint">what the scheduler weighed, newest first</p></header>
    <div class="table-scroll"><table>
      <thead><tr><th>Time</th><th>Trigger</th><th>Answer</th><th>Best plan</th><th class="n">Staying</th><th class="n">Best</th><th class="n">Bound</th><th>Why</th></tr></thead>
      <tbody>
        ${rows.map(
          (d) => html`<tr key=${d.id}>
            <td>${d.reconfiguration_id ? html`<a href="#/change/${d.reconfiguration_id}">${moment(d.created_at)}</a>` : moment(d.created_at)}</td>
            <td>${d.trigger}</td><td>${d.action} <small>${d.outcome}</small></td><td class="words">${arrows(d.difference)}</td>
            <td class="n">${rate(d.stay_tokens_per_s)}</td><td class="n">${rate(d.predicted_tokens_per_s)}</td><td class="n">${rate(d.bound_tokens_per_s)}</td>
            <td>${d.reason}</td>
          </tr>`,
        )}
      </tbody>
    </table></div>
    ${!rows.length && html`<p class="empty">Nothing was weighed.</p>`}
  </section>`;
}

function Audit({ job }) {
  const [rows, setRows] = useState([]);
  useEffect(() => {
    get(`/api/v1/audit?job=${job}&limit=50`).then(setRows, () => setRows([]));
  }, [job]);
  return html`<section class="card" aria-labelledby="audit-title">
    <header><h2 id="audit-title">Audit trail</h2><p class="hint">what operators asked for</p></header>
    <div class="table-scroll"><table>
      <thead><tr><th>Time</th><th>Who</th><th>Action</th><th>Reason</th><th>Answer</th></tr></thead>
      <tbody>
        ${rows.map(
          (a) => html`<tr key=${a.sequence}>
            <td>${moment(a.asked_at)}</td><td>${a.actor} <small>${a.role}</small></td>
            <td>${a.action.replace("Request", "")} <small>${Object.entries(a.parameters).filter(([, v]) => v !== null && typeof v !== "object").map(([k, v]) => `${k} ${v}`).join(", ")}</small></td>
            <td>${a.reason}</td>
            <td>${a.accepted === null ? "no answer on record" : a.accepted ? "accepted" : "refused"} <small>${a.detail}</small></td>
          </tr>`,
        )}
      </tbody>
    </table></div>
    ${!rows.length && html`<p class="empty">Nobody asked for anything.</p>`}
  </section>`;
}
