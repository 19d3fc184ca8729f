// The picked device: what it is, how it was over the last minutes, what concerned it.

import { html, useEffect, useState } from "./vendor/htm-preact-standalone.module.js";
import { get } from "./api.js";
import { BAND_WORDS, SIGNS, band, clock, deviceName, incidentFact, kindSign, kindWord, seconds } from "./words.js";

export function Device({ job, rank, known, code, version, close }) {
  const [device, setDevice] = useState(null);
  const [error, setError] = useState("");
  useEffect(() => {
    let gone = false;
    const load = () =>
      get(`/api/v1/jobs/${job}/devices/${rank}`).then((d) => gone || (setDevice(d), setError("")), (e) => gone || setError(e.message));
    load();
    const again = setInterval(load, 2000);
    return () => ((gone = true), clearInterval(again));
  }, [job, rank, version, code]);
  const shown = device?.rank === rank ? device : null;
  return html`<section class="card device-card" aria-labelledby="device-title">
    <header>
      <h2 id="device-title">${deviceName(rank, known)}</h2><p class="hint">rank ${rank}</p>
      <button class="quiet" onClick=${close} aria-label="Close the device panel">✕</button>
    </header>
    ${error && html`<p class="refusal" role="alert">${error}</p>`}
    ${shown &&
    html`<dl class="answer">
        <div><dt>State</dt><dd>${BAND_WORDS[band(code)]}${shown.worker_state ? `, ${shown.worker_state}` : ""}</dd></div>
        <div><dt>Speed</dt><dd>p = ${shown.p.toFixed(2)}</dd></div>
        <div><dt>Node</dt><dd>${shown.node}, slot ${shown.slot}</dd></div>
        <div><dt>Process</dt><dd>${shown.live_pid ?? shown.pid ?? "–"}${shown.start ? `, start ${shown.start + 1}` : ""}</dd></div>
        ${shown.iteration !== null && html`<div><dt>Iteration</dt><dd>${shown.iteration}</dd></div>`}
        ${shown.beat_age_s !== null && html`<div><dt>Last beat</dt><dd>${seconds(shown.beat_age_s)} ago</dd></div>`}
      </dl>
      <${Spark} points=${shown.health} />
      ${shown.incidents.slice(0, 4).map(
        (i) => html`<p key=${i.id} class="fact"><b class="sign ${kindSign(i.kind)}">${SIGNS[kindSign(i.kind)]}</b> ${clock(i.opened_at)} ${kindWord(i.kind)} ${incidentFact(i)}</p>`,
      )}`}
  </section>`;
}

/** Health over time: p from 0 to 1, the detector's 25 % line dashed. */
function Spark({ points }) {
  if (points.length < 2) return null;
  const [w, h] = [300, 54];
  const x = (n) => (n * w) / (points.length - 1);
  const y = (p) => h - 2 - p * (h - 6);
  const line = points.map((point, n) => `${n ? "L" : "M"}${x(n).toFixed(1)} ${y(point.p).toFixed(1)}`).join("");
  const from = points[0].iteration;
  const to = points.at(-1).iteration;
  return html`<figure class="spark">
    <svg viewBox="0 0 ${w} ${h}" preserveAspectRatio="none" role="img" aria-label="Speed over iterations ${from} to ${to}, now ${points.at(-1).p.toFixed(2)}">
      <line x1="0" x2=${w} y1=${y(0.8)} y2=${y(0.8)} /><path d=${line} />
    </svg>
    <figcaption>p over iterations ${from} to ${to}</figcaption>
  </figure>`;
}
