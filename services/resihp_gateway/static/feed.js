// Incidents, newest first.

import { html } from "./vendor/htm-preact-standalone.module.js";
import { SIGNS, clock, deviceName, incidentFact, kindSign, kindWord } from "./words.js";

export function Feed({ incidents, changes, known, onSelect }) {
  const answers = new Map(changes.map((c) => [c.incident_id, c]));
  return html`<section class="card feed" aria-labelledby="feed-title">
    <header><h2 id="feed-title">Incidents</h2>${incidents.length > 0 && html`<p class="hint">${incidents.length >= 100 ? "the newest 100" : incidents.length}</p>`}</header>
    <div role="log" aria-live="polite" aria-label="Incidents" class="feed-scroll">
      <ol>
        ${incidents.map((i) => html`<${Item} key=${i.id} incident=${i} change=${answers.get(i.id)} known=${known} onSelect=${onSelect} />`)}
      </ol>
      ${!incidents.length && html`<p class="empty">Nothing happened so far.</p>`}
    </div>
  </section>`;
}

function Item({ incident, change, known, onSelect }) {
  const sign = kindSign(incident.kind);
  const fact = incidentFact(incident);
  return html`<li class=${incident.closed_at ? "" : "open"}>
    <b class="sign ${sign}" aria-hidden="true">${SIGNS[sign]}</b>
    <div>
      <p>
        ${incident.ranks.slice(0, 3).map(
          (rank) => html`<button key=${rank} class="device" onClick=${() => onSelect(rank)} title="rank ${rank}">${deviceName(rank, known)}</button> `,
        )}
        ${incident.ranks.length > 3 && `and ${incident.ranks.length - 3} more `}
        ${!incident.ranks.length && `node ${incident.node} `}<span class="what">${kindWord(incident.kind)}</span>
      </p>
      ${fact && html`<p class="fact">${fact}</p>`}
      <p class="when">
        <time datetime=${incident.opened_at}>${clock(incident.opened_at)}</time>
        ${incident.closed_at ? "" : html` · <em>open</em>`}
        ${change && html` · <a href="#/change/${change.id}">${change.status === "applied" ? "plan changed" : `change ${change.status}`}</a>`}
      </p>
    </div>
  </li>`;
}
