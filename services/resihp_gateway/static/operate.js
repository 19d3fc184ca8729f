// What an operator may do. Every action asks for a reason, which goes into the audit trail.

import { html, useRef, useState } from "./vendor/htm-preact-standalone.module.js";
import { post } from "./api.js";
import { arrows, rate } from "./words.js";

const MODES = {
  act: "decide and do",
  advise: "decide, and wait for approval",
  off: "weigh nothing that can wait",
};

export function Operate({ job, control, me, selected, stopped, ended }) {
  const [asked, setAsked] = useState(null);
  const dialog = useRef(null);
  const may = me && me.role !== "view" && !ended;
  function ask(action) {
    setAsked({ ...action, state: "" });
    dialog.current.showModal();
  }
  const decision = control?.decision;
  const mode = control?.mode ?? "act";
  return html`<section class="card operate" aria-labelledby="operate-title">
    <header><h2 id="operate-title">Operate</h2><span class="hint">${me ? `${me.name}: ${me.role}` : ""}</span></header>
    ${control?.breaker_tripped && html`<p class="refusal" role="alert">The breaker has tripped: too many changes at once. Setting a mode resets it.</p>`}
    ${decision &&
    html`<div class="decision" role="status">
      <p><b>${decision.action === "wait" ? "Waiting" : "Advice"}</b> ${decision.trigger}</p>
      <p>${arrows(decision.difference) || decision.reason}</p>
      <p class="hint">${rate(decision.stay_tokens_per_s)} → ${rate(decision.predicted_tokens_per_s)} tok/s predicted</p>
      <p class="buttons">
        <button class="primary" disabled=${!may} onClick=${() => ask({ path: "approve", title: "Approve this change", body: { decision_id: decision.decision_id } })}>Approve</button>
        <button disabled=${!may} onClick=${() => ask({ path: "veto", title: "Veto this change", body: { decision_id: decision.decision_id } })}>Veto</button>
      </p>
    </div>`}
    <fieldset disabled=${!may}>
      <legend>Changes that can wait</legend>
      <div class="segments" role="group" aria-label="Mode">
        ${Object.entries(MODES).map(
          ([name, what]) => html`<button key=${name} aria-pressed=${mode === name} title=${what} onClick=${() => mode !== name && ask({ path: "mode", title: `Mode ${name}: ${what}`, body: { mode: name } })}>${name}</button>`,
        )}
      </div>
      <p class="hint">${MODES[mode]}${control?.held ? "; held for now" : ""}. Losses are always acted on.</p>
      <p class="buttons">
        ${control?.held
          ? html`<button onClick=${() => ask({ path: "hold", title: "Lift the hold", body: { for_s: 0 } })}>Lift the hold</button>`
          : html`<button onClick=${() => ask({ path: "hold", title: "Protect for 10 minutes", body: { for_s: 600 } })}>Protect 10 min</button>
              <button onClick=${() => ask({ path: "hold", title: "Pause changes until lifted", body: {} })}>Pause</button>`}
        ${stopped && html`<button onClick=${() => ask({ path: "restarts", title: `Start the worker of rank ${selected} again`, body: { rank: selected }, silent: true })}>Restart rank ${selected}</button>`}
        <button class="danger" onClick=${() => ask({ path: "stop", title: `Stop the job ${job}`, body: {} })}>Stop job</button>
      </p>
    </fieldset>
    ${me?.role === "view" && html`<p class="hint">Your token may only look.</p>`}
    <dialog ref=${dialog} aria-labelledby="ask-title">${asked && html`<${Ask} job=${job} action=${asked} close=${() => (dialog.current.close(), setAsked(null))} />`}</dialog>
  </section>`;
}

function Ask({ job, action, close }) {
  const [reason, setReason] = useState("");
  const [state, setState] = useState("");
  async function send(event) {
    event.preventDefault();
    setState("asking");
    try {
      await post(`/api/v1/jobs/${job}/${action.path}`, action.silent ? action.body : { ...action.body, reason });
      close();
    } catch (error) {
      setState(error.message);
    }
  }
  return html`<form onSubmit=${send}>
    <h2 id="ask-title">${action.title}</h2>
    ${!action.silent && html`<label>Reason <input value=${reason} onInput=${(e) => setReason(e.target.value)} required maxlength="500" autofocus placeholder="kept in the audit trail" /></label>`}
    ${state && state !== "asking" && html`<p class="refusal" role="alert">${state}</p>`}
    <p class="buttons">
      <button class="primary" disabled=${state === "asking"}>${state === "asking" ? "Asking…" : "Confirm"}</button>
      <button type="button" onClick=${close}>Cancel</button>
    </p>
  </form>`;
}
