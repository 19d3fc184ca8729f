// What if a device stopped or slowed down? Answered by the planner; nothing is applied.

import { html, useEffect, useState } from "./vendor/htm-preact-standalone.module.js";
import { post } from "./api.js";
import { BASIS, arrows, deviceName, rate, seconds, size } from "./words.js";

export function WhatIf({ job, selected, known, ranks }) {
  const [rank, setRank] = useState(null);
  const [p, setP] = useState("0");
  const [answer, setAnswer] = useState(null);
  const [state, setState] = useState("");
  useEffect(() => (setRank(selected), setAnswer(null), setState("")), [selected]);
  async function ask(event) {
    event.preventDefault();
    setState("asking");
    try {
      setAnswer(await post(`/api/v1/jobs/${job}/whatif`, { faults: { [rank]: Number(p) } }));
      setState("");
    } catch (error) {
      setAnswer(null);
      setState(error.message);
    }
  }
  return html`<section class="card whatif" aria-labelledby="whatif-title">
    <header><h2 id="whatif-title">What if</h2><span class="badge">simulation, nothing is applied</span></header>
    <form onSubmit=${ask}>
      <label>Device
        <input list="devices" inputmode="numeric" pattern="[0-9]+" placeholder="rank" required value=${rank ?? ""} onInput=${(e) => setRank(e.target.value === "" ? null : Number(e.target.value))} />
      </label>
      <label>happens
        <select value=${p} onChange=${(e) => setP(e.target.value)}>
          <option value="0">stops</option>
          <option value="0.8">slows to 0.8</option>
          <option value="0.5">slows to 0.5</option>
          <option value="0.25">slows to 0.25</option>
        </select>
      </label>
      <button class="primary" disabled=${state === "asking" || rank === null}>Ask</button>
    </form>
    ${rank === null && html`<p class="empty">Pick a device on the map.</p>`}
    ${rank !== null && html`<p class="hint">rank ${rank} ${known.get(rank) ? `is ${deviceName(rank, known)}` : ""}</p>`}
    <div aria-live="polite">
      ${state === "asking" && html`<p class="empty">The planner is searching…</p>`}
      ${state && state !== "asking" && html`<p class="refusal" role="alert">${state}</p>`}
      ${answer && html`<${Answer} found=${answer} />`}
    </div>
  </section>`;
}

function Answer({ found }) {
  const top = Math.max(found.now_tokens_per_s, found.best_tokens_per_s, found.bound_tokens_per_s);
  const bars = [
    ["Now", found.now_tokens_per_s, "now"],
    ["If nothing is done", found.do_nothing_tokens_per_s, "nothing"],
    ["With the best plan", found.best_tokens_per_s, "best"],
    // the bound is that of the plan in force: a better arrangement of the same devices may beat it
    found.bound_tokens_per_s >= found.best_tokens_per_s && ["Bound", found.bound_tokens_per_s, "limit"],
  ].filter(Boolean);
  return html`<ul class="bars">
      ${bars.map(
        ([name, value, kind]) => html`<li key=${kind}><span>${name}</span><b class="n">${rate(value)}</b><i class="bar ${kind}" style="width:${Math.max(0.5, (100 * value) / top)}%"></i></li>`,
      )}
    </ul>
    <dl class="answer">
      <div><dt>Plan</dt><dd>${arrows(found.difference)}</dd></div>
      <div><dt>Pause</dt><dd>${seconds(found.change_s)}, ${size(found.bytes_moved)} moved</dd></div>
      <div><dt>Pays off</dt><dd>${found.break_even_s === null ? "never" : `after ${seconds(found.break_even_s)}`}</dd></div>
    </dl>
    <p class="hint">tokens/s, predicted by the cost model${found.predicted_by === "pace" ? ", scaled to this job's pace" : ` (${BASIS.nominal})`}${found.shares_cores ? "; as if each worker had a device of its own: here they share processors" : ""}</p>`;
}
