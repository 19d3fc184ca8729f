// The dialog before an action: its numbers, if it has any, and the reason.

import { html, useState } from "./vendor/htm-preact-standalone.module.js";
import { post } from "./api.js";

/** `action`: {path, title, body, fields: [{name, label, value, min, max}]}. */
export function Ask({ job, action, close }) {
  const [reason, setReason] = useState("");
  const [values, setValues] = useState(Object.fromEntries(action.fields.map((f) => [f.name, f.value])));
  const [state, setState] = useState("");
  async function send(event) {
    event.preventDefault();
    setState("asking");
    const numbers = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, Number(value)]));
    try {
      await post(`/api/v1/jobs/${job}/${action.path}`, { ...action.body, ...numbers, reason });
      close();
    } catch (error) {
      setState(error.message);
    }
  }
  return html`<form onSubmit=${send}>
    <h2 id="ask-title">${action.title}</h2>
    ${action.fields.map(
      (f) => html`<label key=${f.name}>${f.label} <input type="number" step="any" min=${f.min} max=${f.max} value=${values[f.name]} required onInput=${(e) => setValues({ ...values, [f.name]: e.target.value })} /></label>`,
    )}
    <label>Reason <input value=${reason} onInput=${(e) => setReason(e.target.value)} required maxlength="500" autofocus placeholder="kept in the audit trail" /></label>
    ${state && state !== "asking" && html`<p class="refusal" role="alert">${state}</p>`}
    <p class="buttons">
      <button class="primary" disabled=${state === "asking"}>${state === "asking" ? "Asking…" : "Confirm"}</button>
      <button type="button" onClick=${close}>Cancel</button>
    </p>
  </form>`;
}
