// What an operator may do. Every action asks for a reason, which goes into the audit trail.

import { html, useRef, useState } from "./vendor/htm-preact-standalone.module.js";
import { Ask } from "./ask.js";
import { arrows, clock, rate } from "./words.js";

const MODES = {
  act: "decide and do",
  advise: "decide, and wait for approval",
  off: "weigh nothing that can wait",
};
const PROTECT = [{ name: "for_s", label: "Seconds", value: 600, min: 1, max: 2592000 }];

export function Operate({ job, control, me, selected, stopped, ended }) {
  const [asked, setAsked] = useState(null);
  const dialog = useRef(null);
  const may = me && me.role !== "view" && !ended;
  function ask(path, title, body = {}, fields = []) {
    setAsked({ path, title, body, fields });
    dialog.current.showModal();
  }
  const decision = control?.decision;
  const mode = control?.mode ?? "act";
  const evicted = control?.evicted ?? [];
  return html`<section class="card operate" aria-labelledby="operate-title">
    <header><h2 id="operate-title">Operate</h2><span class="hint">${me ? `${me.name}: ${me.role}` : ""}</span></header>
    ${control?.breaker && html`<p class="refusal" role="alert">The breaker has tripped: ${control.breaker}. Setting a mode resets it.</p>`}
    ${decision &&
    html`<div class="decision" role="status">
      <p><b>${decision.action === "wait" ? "Waiting" : "Advice"}</b> ${decision.trigger}</p>
      <p>${arrows(decision.difference) || decision.reason}</p>
      <p class="hint">${rate(decision.stay_tokens_per_s)} → ${rate(decision.predicted_tokens_per_s)} tok/s predicted</p>
      <p class="buttons">
        <button class="primary" disabled=${!may} onClick=${() => ask("approve", "Approve this change", { decision_id: decision.id })}>Approve</button>
        <button disabled=${!may} onClick=${() => ask("veto", "Veto this change", { decision_id: decision.id })}>Veto</button>
      </p>
    </div>`}
    <fieldset disabled=${!may}>
      <legend>Changes that can wait</legend>
      <div class="segments" role="group" aria-label="Mode">
        ${Object.entries(MODES).map(
          ([name, what]) => html`<button key=${name} aria-pressed=${mode === name} title=${what} onClick=${() => mode !== name && ask("mode", `Mode ${name}: ${what}`, { mode: name })}>${name}</button>`,
        )}
      </div>
      <p class="hint">${MODES[mode]}${control?.held ? `; held ${control.held_until ? `until ${clock(control.held_until)}` : "until lifted"}` : ""}. Losses are always acted on.</p>
      <p class="buttons">
        ${control?.held
          ? html`<button onClick=${() => ask("hold", "Lift the hold", { for_s: 0 })}>Lift the hold</button>`
          : html`<button onClick=${() => ask("hold", "Protect: make no change that can wait", {}, PROTECT)}>Protect…</button>
              <button onClick=${() => ask("hold", "Pause changes until lifted")}>Pause</button>`}
        <button onClick=${() => ask("undo", "Undo: back to the layout before the last change")}>Undo</button>
        <button class="danger" onClick=${() => ask("stop", `Stop the job ${job}`)}>Stop job</button>
      </p>
      ${selected !== null && html`<${DeviceActions} rank=${selected} stopped=${stopped} isEvicted=${evicted.includes(selected)} ask=${ask} />`}
      ${evicted.length > 0 && html`<p class="hint">Evicted: ${evicted.map((rank) => `rank ${rank}`).join(", ")}</p>`}
      <${Thresholds} rows=${control?.thresholds ?? []} ask=${ask} />
    </fieldset>
    ${me?.role === "view" && html`<p class="hint">Your token may only look.</p>`}
    <dialog ref=${dialog} aria-labelledby="ask-title">${asked && html`<${Ask} job=${job} action=${asked} close=${() => (dialog.current.close(), setAsked(null))} />`}</dialog>
  </section>`;
}

function DeviceActions({ rank, stopped, isEvicted, ask }) {
  return html`<p class="buttons">
    ${stopped && html`<button onClick=${() => ask("restarts", `Start the worker of rank ${rank} again`, { rank })}>Restart rank ${rank}</button>`}
    ${isEvicted
      ? html`<button onClick=${() => ask("readmit", `Readmit rank ${rank}: it may be used again`, { ranks: [rank] })}>Readmit rank ${rank}</button>`
      : html`<button onClick=${() => ask("evict", `Evict rank ${rank}: use it no more until it is readmitted`, { ranks: [rank] })}>Evict rank ${rank}</button>`}
  </p>`;
}

/** The numbers of the decision rules; those that were changed are marked. */
function Thresholds({ rows, ask }) {
  if (!rows.length) return null;
  const changed = rows.filter((t) => t.value !== t.default);
  const change = (t) =>
    ask("threshold", `Threshold ${t.name}: ${t.meaning}`, { name: t.name }, [{ name: "value", label: `Value, ${t.low} to ${t.high} (default ${t.default})`, value: t.value, min: t.low, max: t.high }]);
  return html`<details class="thresholds">
    <summary>Thresholds <small>${changed.length ? changed.map((t) => `${t.name} ${t.value}`).join(", ") : "all at their defaults"}</small></summary>
    <ul>
      ${rows.map(
        (t) => html`<li key=${t.name}>
          <button class="quiet" onClick=${() => change(t)} aria-label="Change ${t.name}, now ${t.value}">${t.name}</button>
          <b class="n">${t.value}</b><small>${t.meaning}</small>
        </li>`,
      )}
    </ul>
  </details>`;
}
