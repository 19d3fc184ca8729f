// The whole history with filters, page by page, and the audit trail.

import { html, useEffect, useState } from "./vendor/htm-preact-standalone.module.js";
import { get, page } from "./api.js";
import { Changes } from "./changes.js";
import { arrows, moment, rate } from "./words.js";

export function HistoryPage({ job, known }) {
  const [filter, setFilter] = useState({ status: "", mode: "", kind: "", device: "" });
  const [rows, setRows] = useState([]);
  const [incidents, setIncidents] = useState([]);
  const [next, setNext] = useState(null);
  const [error, setError] = useState("");
  async function load(path, before) {
    try {
      const found = await page(path);
      const ids = new Set(found.rows.map((c) => c.incident_id).filter(Boolean));
      const causes = ids.size ? await page(`/api/v1/incidents?job=${job}&sort=newest&limit=1000`) : { rows: [] };
      setRows([...before, ...found.rows]);
      setIncidents(causes.rows);
      setNext(found.next);
      setError("");
    } catch (problem) {
      setError(problem.message);
    }
  }
  useEffect(() => {
    const chosen = Object.entries(filter).filter(([, value]) => value !== "");
    load(`/api/v1/reconfigurations?${new URLSearchParams([["job", job], ["sort", "newest"], ["limit", "50"], ...chosen])}`, []);
  }, [job, filter]);
  const select = (name, options) => html`<label>${name}
    <select value=${filter[name]} onChange=${(e) => setFilter({ ...filter, [name]: e.target.value })}>
      <option value="">any</option>${options.map((o) => html`<option key=${o}>${o}</option>`)}
    </select></label>`;
  const filters = html`<form class="filters" onSubmit=${(e) => e.preventDefault()}>
    ${select("status", ["applied", "planned", "rejected", "superseded"])} ${select("mode", ["initial", "recovery", "planned"])}
    ${select("kind", ["worker_lost", "worker_frozen", "node_lost", "link_broken", "device_slow", "device_recovered"])}
    <label>device <input inputmode="numeric" pattern="[0-9]*" placeholder="rank" value=${filter.device} onChange=${(e) => setFilter({ ...filter, device: e.target.value.trim() })} /></label>
  </form>`;
  return html`${error && html`<p class="refusal" role="alert">${error}</p>`}
    <${Changes} changes=${rows} incidents=${incidents} known=${known} title="History" more=${filters} />
    ${next && html`<p class="center"><button onClick=${() => load(next, rows)}>Older changes</button></p>`}
    <${Decisions} job=${job} />
    <${Audit} job=${job} />`;
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
