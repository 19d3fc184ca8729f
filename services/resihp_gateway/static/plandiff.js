// Old plan above new plan on one layer axis: width = layers, height = devices of the TP group, a dropped share dashed.

import { html } from "./vendor/htm-preact-standalone.module.js";

const WIDTH = 920;
const LEFT = 92;
const RIGHT = 124;
const GAP = 34;

/** One drawing per distinct change; replicas that did not change are named in one sentence. */
export function PlanDiff({ before, after, words }) {
  if (!after) return html`<p class="empty">The plan is not stored.</p>`;
  const pairs = before ? distinct(before, after) : distinct(after, after).map((p) => ({ ...p, old: null, changed: true }));
  const shown = pairs.filter((p) => p.changed);
  const same = pairs.filter((p) => !p.changed);
  return html`<figure class="diff">
    ${(shown.length ? shown : pairs.slice(0, 1)).map((pair) => html`<${Pair} key=${pair.names[0]} pair=${pair} words=${words} />`)}
    <figcaption>
      Width: layers. Height: devices of the tensor-parallel group.
      ${shown.length > 0 && same.length > 0 && ` Unchanged: ${same.map((p) => named(p.names)).join(", ")}.`}
      ${after.standby?.length > 0 && ` Standing by: ${after.standby.length} device${after.standby.length > 1 ? "s" : ""}.`}
    </figcaption>
  </figure>`;
}

const named = (names) => (names.length > 4 ? `${names.slice(0, 2).join(", ")} and ${names.length - 2} others` : names.join(", "));

function distinct(before, after) {
  const pairs = new Map();
  const partner = match(before, after);
  const add = (name, old, now) => {
    const shape = (r) => r && [r.num_micro_batches, r.stages.map((s) => [s.layers, s.ranks.length, s.weights])];
    const key = JSON.stringify([shape(old), shape(now)]);
    const found = pairs.get(key) ?? { names: [], old, now, changed: JSON.stringify(shape(old)) !== JSON.stringify(shape(now)) };
    found.names.push(name);
    pairs.set(key, found);
  };
  before.replicas.forEach((replica, a) => add(`R${a}`, replica, partner.has(a) ? after.replicas[partner.get(a)] : null));
  const taken = new Set(partner.values());
  after.replicas.forEach((replica, b) => !taken.has(b) && add(`new R${b}`, null, replica));
  return [...pairs.values()].sort((a, b) => a.names.length - b.names.length);
}

/** Replicas of both plans that share the most ranks (as `describe_change` names them). */
function match(before, after) {
  const members = (r) => new Set(r.stages.flatMap((s) => s.ranks));
  const news = after.replicas.map(members);
  const scored = [];
  before.replicas.forEach((replica, a) =>
    news.forEach((set, b) => {
      const common = [...members(replica)].filter((rank) => set.has(rank)).length;
      if (common) scored.push([common, a, b]);
    }),
  );
  const found = new Map();
  const taken = new Set();
  for (const [, a, b] of scored.sort((x, y) => y[0] - x[0] || x[1] - y[1] || x[2] - y[2])) {
    if (found.has(a) || taken.has(b)) continue;
    found.set(a, b);
    taken.add(b);
  }
  return found;
}

function Pair({ pair, words }) {
  const both = [pair.old, pair.now].filter(Boolean);
  const layers = Math.max(...both.flatMap((r) => r.stages.map((s) => s.layers[1])));
  const tp = Math.max(...both.flatMap((r) => r.stages.map((s) => s.ranks.length)));
  const height = Math.min(64, Math.max(30, tp * 15));
  const scale = (WIDTH - LEFT - RIGHT) / layers;
  const at = (layer) => LEFT + layer * scale;
  const two = pair.old && pair.now;
  const total = 22 + height * both.length + (two ? GAP : 0) + 4;
  const rows = [];
  let y = 22;
  if (pair.old) {
    rows.push(row("old", pair.old, pair.now, y, height, tp, at));
    y += height + GAP;
  }
  if (pair.now) rows.push(row(pair.old ? "new" : "plan", pair.now, pair.old, y, height, tp, at));
  return html`<svg viewBox="0 0 ${WIDTH} ${total}" role="img" aria-label="${named(pair.names)}: ${words || "plan"}">
    <text x="0" y="13" class="name">${named(pair.names)}</text>
    ${two && borders(pair.old, pair.now, 22 + height, 22 + height + GAP, at)} ${rows}
    ${!pair.now && html`<text x=${LEFT} y=${total - 4} class="gone">dropped</text>`}
  </svg>`;
}

function row(label, replica, other, y, height, tp, at) {
  const unit = height / tp;
  return html`<g>
    <text x="0" y=${y + height / 2 + 4} class="label">${label}</text>
    ${replica.stages.map((stage, s) => {
      const [a, b] = stage.layers;
      const own = stage.ranks.length * unit;
      const twin = other?.stages[s];
      const changed = !twin || twin.ranks.length !== stage.ranks.length || String(twin.layers) !== String(stage.layers) || String(twin.weights) !== String(stage.weights);
      const wide = at(b) - at(a);
      const even = new Set(stage.weights).size <= 1;
      const text = wide > 70 ? `${b - a} L · TP ${stage.ranks.length}${even || wide < 130 ? "" : ` (${stage.weights.join(":")})`}` : wide > 30 ? `${b - a}` : "";
      return html`<g key=${s} class=${changed ? "block changed" : "block"}>
        <title>${`S${s}: layers ${a} to ${b - 1}, TP ${stage.ranks.length}, ranks ${stage.ranks.join(", ")}, weights ${stage.weights.join(":")}`}</title>
        ${own < height - 1 && html`<rect class="gap" x=${at(a) + 1.5} y=${y + 0.75} width=${Math.max(1, wide - 3)} height=${height - own - 1.5} rx="3" />`}
        <rect class="full" x=${at(a) + 0.75} y=${y + height - own} width=${Math.max(1, wide - 1.5)} height=${own} rx="3" />
        ${stage.ranks.slice(1).map((rank, t) => html`<line key=${rank} class="cut" x1=${at(a) + 3} x2=${at(b) - 3} y1=${y + height - own + (t + 1) * unit} y2=${y + height - own + (t + 1) * unit} />`)}
        <text x=${(at(a) + at(b)) / 2} y=${y + height - own / 2 + 4} class="inside">${text}</text>
      </g>`;
    })}
    <text x=${WIDTH - RIGHT + 12} y=${y + height / 2 + 4} class="label">${replica.num_micro_batches} micro-batches</text>
  </g>`;
}

function borders(old, now, top, bottom, at) {
  const count = Math.max(old.stages.length, now.stages.length) - 1;
  return Array.from({ length: count }, (_, s) => {
    const a = old.stages[s]?.layers[1];
    const b = now.stages[s]?.layers[1];
    if (a === undefined || b === undefined || s >= old.stages.length - 1 || s >= now.stages.length - 1) return null;
    return html`<line key=${s} class=${a === b ? "border" : "border moved"} x1=${at(a)} y1=${top + 3} x2=${at(b)} y2=${bottom - 3} />`;
  });
}
