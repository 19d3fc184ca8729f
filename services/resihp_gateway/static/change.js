// One change of plan in full: trigger and evidence, both plans, phases, proof, prediction, cost, alternatives.

import { html, useEffect, useState } from "./vendor/htm-preact-standalone.module.js";
import { get, picture } from "./api.js";
import { cause } from "./changes.js";
import { BASIS, PHASES, arrows, PHASE_WORDS, PLANNED_WORDS, PROOF_WORDS, CHANGE_WORDS, SIGNS, moment, rate, seconds, signed, size } from "./words.js";

/** `version` changes when the record may have changed. */
export function ChangePage({ id, known, version }) {
  const [change, setChange] = useState(null);
  const [error, setError] = useState("");
  useEffect(() => {
    get(`/api/v1/reconfigurations/${id}`).then((c) => (setChange(c), setError("")), (e) => setError(e.message));
  }, [id, version]);
  if (error) return html`<p class="card empty" role="alert">${error}</p>`;
  if (!change) return html`<p class="card empty">Loading…</p>`;
  const why = cause(change, change.incident, known);
  return html`<article class="change">
    <section class="card headline">
      <p class="crumbs"><a href="#/">Overview</a> / change of plan <code>${change.id.slice(0, 8)}</code></p>
      <h2><b class="sign ${why.sign}" aria-hidden="true">${SIGNS[why.sign]}</b> ${why.text}</h2>
      <p class="difference">${arrows(change.difference) || (change.mode === "initial" ? "first plan" : "same layout")}</p>
      <p class="hint">
        <span class="badge ${change.status}">${change.status}</span> ${CHANGE_WORDS[change.mode] ?? change.mode} · epoch ${change.old_epoch} → ${change.new_epoch} · ${moment(change.created_at)}
      </p>
      <dl class="figures">
        <${Figure} name="pause" value=${seconds(change.pause_s)} hint="time without training" />
        <${Figure} name="lost" value=${change.lost_device_s === null ? "–" : `${change.lost_device_s.toFixed(1)} device-s`} hint="pause × devices" />
        <${Figure} name="moved" value=${size(change.bytes_moved)} hint="parameters and moments" />
        <${Figure} name="predicted" value="${rate(change.predicted_tokens_per_s)} tok/s" hint=${BASIS[change.predicted_by] ?? "by the cost model"} />
        <${Figure} name="achieved" value="${rate(change.achieved_tokens_per_s)} tok/s" hint="median after the change" />
        <${Figure} name="error" value=${signed(change.prediction_error)} hint="achieved against predicted" />
      </dl>
    </section>
    <section class="card" aria-labelledby="plans-title">
      <header><h2 id="plans-title">Plans</h2><p class="hint">${change.old_digest.slice(0, 8) || "none"} → ${change.new_digest.slice(0, 8)}</p></header>
      <${PlanDiff} id=${id} version=${change.status} />
    </section>
    <div class="two">
      <section class="card" aria-labelledby="phases-title">
        <header><h2 id="phases-title">Phases</h2><p class="hint">total ${seconds(change.phases_s.total)}</p></header>
        <${Timeline} phases=${change.phases_s} words=${change.mode === "recovery" ? PHASE_WORDS : PLANNED_WORDS} />
      </section>
      <section class="card" aria-labelledby="proof-title">
        <header><h2 id="proof-title">Proof</h2></header>
        <ul class="proof">
          ${Object.entries(change.proof).map(
            ([name, ok]) => html`<li key=${name} class=${ok ? "ok" : "bad"}><b aria-hidden="true">${ok ? "✓" : "✕"}</b><span>${PROOF_WORDS[name] ?? name.replaceAll("_", " ")}${ok ? "" : ": does NOT hold"}</span></li>`,
          )}
        </ul>
        ${!Object.keys(change.proof).length && html`<p class="empty">Nothing was checked yet.</p>`}
        ${change.outcome && html`<p class="hint">${change.outcome}</p>`}
      </section>
    </div>
    <div class="two">
      <section class="card" aria-labelledby="trigger-title">
        <header><h2 id="trigger-title">Trigger</h2></header>
        ${change.incident
          ? html`<${Facts} facts=${{ ...change.incident.evidence, ...prefixed(change.incident.verdict, "verdict") }} />
              <p class="advice"><b>Advice of the detector</b> ${change.incident.advice || "–"}</p>`
          : html`<p>${change.reason || "The job's first plan."}</p>`}
        ${change.incident && html`<p class="advice"><b>Decision</b> ${change.reason}</p>`}
      </section>
      <section class="card" aria-labelledby="alternatives-title">
        <header><h2 id="alternatives-title">Alternatives</h2><p class="hint">considered, and why they lost</p></header>
        <${Alternatives} found=${change.alternatives} chosen=${change.predicted_tokens_per_s} />
      </section>
    </div>
    <p class="hint foot"><a href="/api/v1/reconfigurations/${change.id}" target="_blank" rel="noopener">This change as JSON</a> · <code>resihp report ${change.id.slice(0, 8)}</code></p>
  </article>`;
}

/** Drawn by the gateway (the same picture is in reports); its texts are escaped there. */
function PlanDiff({ id, version }) {
  const [drawn, setDrawn] = useState("");
  const [error, setError] = useState("");
  useEffect(() => {
    picture(`/api/v1/reconfigurations/${id}/plans.svg`).then((svg) => (setDrawn(svg), setError("")), (e) => setError(e.message));
  }, [id, version]);
  return html`<figure class="diff">
    ${error ? html`<p class="empty">${error}</p>` : html`<div dangerouslySetInnerHTML=${{ __html: drawn }}></div>`}
    <figcaption>Width: layers. Height: devices of the tensor-parallel group; a dropped share is dashed.</figcaption>
  </figure>`;
}

const Figure = ({ name, value, hint }) => html`<div><dt>${name}</dt><dd>${value}<small>${hint}</small></dd></div>`;
const prefixed = (value, name) => Object.fromEntries(Object.entries(value ?? {}).map(([k, v]) => [`${name}.${k}`, v]));

export function Facts({ facts }) {
  const shown = Object.entries(facts).filter(([, v]) => v !== null && v !== "");
  return html`<table class="facts"><tbody>
    ${shown.map(([name, value]) => html`<tr key=${name}><th scope="row">${name}</th><td>${typeof value === "object" ? JSON.stringify(value) : typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(5)) : String(value)}</td></tr>`)}
  </tbody></table>`;
}

/** Bars one after the other; `abort` runs beside `plan`, so it is drawn under it. */
function Timeline({ phases, words }) {
  const total = PHASES.reduce((sum, p) => sum + (phases[p] ?? 0), 0);
  if (!total) return html`<p class="empty">Not measured yet.</p>`;
  let from = 0;
  const rows = [];
  for (const phase of PHASES) {
    const span = phases[phase] ?? 0;
    rows.push([phase, from, span]);
    if (phase === "plan" && phases.abort) rows.push(["abort", from, phases.abort]);
    from += span;
  }
  return html`<ol class="timeline">
    ${rows.map(
      ([phase, start, span]) => html`<li key=${phase}>
        <b>${phase}</b>
        <span class="track"><i class="phase-${phase}" style="left:${(100 * start) / total}%;width:${Math.max(0.4, (100 * Math.min(span, total - start)) / total)}%"></i></span>
        <span class="n">${seconds(span)}</span>
        <small>${words[phase]}</small>
      </li>`,
    )}
  </ol>`;
}

export function Alternatives({ found, chosen }) {
  if (!found?.length) return html`<p class="empty">None was considered.</p>`;
  return html`<table>
    <thead><tr><th>Plan</th><th class="n">Predicted</th><th class="n">Of chosen</th><th>Why it lost</th></tr></thead>
    <tbody>
      ${found.map(
        (a, n) => html`<tr key=${n}>
          <td><b>${a.name}</b>${a.difference && html`<br /><small>${arrows(a.difference)}</small>`}</td>
          <td class="n">${rate(a.predicted_tokens_per_s)}</td>
          <td class="n">${chosen && a.predicted_tokens_per_s ? `${((100 * a.predicted_tokens_per_s) / chosen).toFixed(0)} %` : "–"}</td>
          <td>${a.reason ?? a.why_lost}</td>
        </tr>`,
      )}
    </tbody>
  </table>`;
}
