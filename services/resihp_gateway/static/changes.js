// Reconfigurations as a table; each row leads to its page.

import { html } from "./vendor/htm-preact-standalone.module.js";
import { BASIS, PHASES, arrows, CHANGE_WORDS, SIGNS, deviceName, kindSign, kindWord, moment, clock, rate, seconds, signed, size } from "./words.js";

export function Changes({ changes, incidents, known, title = "Changes of plan", more = null, none = "No plan yet." }) {
  const byId = new Map(incidents.map((i) => [i.id, i]));
  const longest = Math.max(0.001, ...changes.map((c) => c.phases_s?.total ?? 0));
  return html`<section class="card changes" aria-labelledby="changes-title">
    <header><h2 id="changes-title">${title}</h2>${more}</header>
    <div class="table-scroll">
      <table>
        <thead>
          <tr>
            <th>Time</th><th>Cause</th><th>Old plan → new plan</th><th class="n">Predicted</th><th class="n">Achieved</th>
            <th class="n">Error</th><th class="n">Moved</th><th class="n">Pause</th>
            <th class="phases-head">${PHASES.join(" · ")}</th>
          </tr>
        </thead>
        <tbody>
          ${changes.map((c) => html`<${Row} key=${c.id} change=${c} incident=${byId.get(c.incident_id)} known=${known} longest=${longest} />`)}
        </tbody>
      </table>
    </div>
    ${!changes.length && html`<p class="empty">${none}</p>`}
  </section>`;
}

export function cause(change, incident, known) {
  if (incident) {
    const who = incident.ranks.length > 2 ? `${incident.ranks.length} devices` : incident.ranks.map((r) => deviceName(r, known)).join(", ");
    return { sign: kindSign(incident.kind), text: `${who || `node ${incident.node}`} ${kindWord(incident.kind)}` };
  }
  return { sign: "change", text: change.mode === "initial" ? "job started" : change.reason || CHANGE_WORDS[change.mode] };
}

function Row({ change, incident, known, longest }) {
  const why = cause(change, incident, known);
  return html`<tr>
    <td><a href="#/change/${change.id}" title=${moment(change.created_at)}>${clock(change.created_at)}</a></td>
    <td><b class="sign ${why.sign}" aria-hidden="true">${SIGNS[why.sign]}</b> <span class="clip" title=${why.text}>${why.text}</span></td>
    <td class="words">
      ${change.status !== "applied" && html`<span class="badge ${change.status}">${change.status}</span> `}${arrows(change.difference) || (change.mode === "initial" ? "first plan" : "same layout")}
    </td>
    <td class="n" title=${BASIS[change.predicted_by] ?? "by the cost model"}>${rate(change.predicted_tokens_per_s)}${change.predicted_by === "nominal" && html`<br /><small>nominal</small>`}</td>
    <td class="n">${rate(change.achieved_tokens_per_s)}</td>
    <td class="n">${signed(change.prediction_error)}</td>
    <td class="n">${size(change.bytes_moved)}</td>
    <td class="n">${seconds(change.mode === "initial" ? null : change.pause_s)}</td>
    <td><${PhaseBar} phases=${change.mode === "initial" ? {} : change.phases_s} longest=${longest} /></td>
  </tr>`;
}

export function PhaseBar({ phases, longest }) {
  const total = PHASES.reduce((sum, p) => sum + (phases?.[p] ?? 0), 0);
  if (!total) return html`<span class="muted">–</span>`;
  const label = PHASES.filter((p) => phases[p]).map((p) => `${p} ${seconds(phases[p])}`).join(", ");
  const width = Math.max(12, 100 * Math.sqrt(Math.min(1, total / longest)));
  return html`<span class="phasebar" role="img" aria-label=${label} title=${label} style="width:${width}%">
    ${PHASES.map((p) => phases[p] > 0 && html`<i key=${p} class="phase-${p}" style="flex-grow:${phases[p] / total}"></i>`)}
  </span>`;
}
