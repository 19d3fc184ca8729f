// Throughput over iterations: observed, healthy, bound; changes of plan and incidents as marks above the plot.

import { html, useEffect, useRef } from "./vendor/htm-preact-standalone.module.js";
import { SIGNS, kindSign, rate } from "./words.js";

const MERGE_PX = 14;

export function Throughput({ points, rates, changes, incidents, theme }) {
  const box = useRef(null);
  const plot = useRef(null);
  const latest = useRef({});
  latest.current = { points, rates, changes, incidents };
  useEffect(() => {
    plot.current = make(box.current, latest);
    const watch = new ResizeObserver(() => plot.current?.setSize(extent(box.current)));
    watch.observe(box.current);
    return () => {
      watch.disconnect();
      plot.current.destroy();
    };
  }, [theme]);
  useEffect(() => plot.current?.setData(columns(points, rates)), [points, rates, changes, incidents, theme]);
  const now = rates?.now;
  return html`<section class="card throughput" aria-labelledby="throughput-title">
    <header>
      <h2 id="throughput-title">Throughput</h2>
      <p class="hint">tokens/s by iteration</p>
      <ul class="legend lines" aria-label="Lines">
        <li><i class="line observed"></i>observed</li>
        <li><i class="line bound"></i>bound: healthy × device speed left</li>
        <li><i class="line healthy"></i>healthy</li>
        <li><b class="sign change">◆</b>change of plan</li>
        <li><b class="sign stop">✕</b>stop</li>
        <li><b class="sign slow">▼</b>slow</li>
      </ul>
    </header>
    <div ref=${box} class="plot" role="img" aria-label="Throughput ${rate(now)} tokens/s now, healthy ${rate(rates?.healthy)}, bound ${rate(rates?.bound)}"></div>
    ${!points.length && html`<p class="empty">No iteration committed yet.</p>`}
  </section>`;
}

function columns(points, rates) {
  const healthy = rates?.healthy ?? null;
  const bounds = rates?.bounds ?? {};
  const lastEpoch = points.at(-1)?.[1];
  const bound = (epoch) => (epoch === lastEpoch ? rates?.bound : bounds[epoch]) ?? bounds[epoch] ?? null;
  return [points.map((p) => p[0]), points.map((p) => p[2]), points.map((p) => bound(p[1])), points.map(() => healthy)];
}

const tick = (t) => (t >= 1e6 ? `${t / 1e6}M` : t >= 1e3 ? `${t / 1e3}k` : t);

function extent(box) {
  return { width: Math.max(280, box.clientWidth), height: Math.max(140, box.clientHeight || 210) };
}

function make(box, latest) {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const stepped = uPlot.paths.stepped({ align: 1 });
  return new uPlot(
    {
      ...extent(box),
      padding: [22, 12, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { time: false }, y: { range: (_, min, max) => [0, Math.max(1, max * 1.06)] } },
      axes: [
        { ...axis, size: 26, values: (_, ticks) => ticks.map((t) => (Number.isInteger(t) ? t : "")) },
        { ...axis, size: 46, values: (_, ticks) => ticks.map(tick) },
      ],
      series: [
        {},
        { stroke: colour("--accent"), width: 1.8, fill: colour("--accent-wash"), points: { show: false } },
        { stroke: colour("--bound"), width: 1.6, dash: [6, 4], paths: stepped, points: { show: false } },
        { stroke: colour("--muted"), width: 1, dash: [1, 4], points: { show: false } },
      ],
      hooks: { draw: [(u) => marks(u, latest.current, colour)], setCursor: [(u) => tip(u, latest.current)] },
    },
    columns([], null),
    box,
  );
}

/** Iteration at which each epoch began, as far as the points reach. */
function beginnings(points) {
  const found = new Map();
  for (const [iteration, epoch] of points) if (!found.has(epoch)) found.set(epoch, iteration);
  return found;
}

function events({ points, changes, incidents }) {
  const began = beginnings(points);
  const byIncident = new Map(incidents.map((i) => [i.id, i]));
  const found = [];
  for (const change of changes) {
    const x = began.get(change.new_epoch);
    if (x === undefined || change.mode === "initial" || change.status !== "applied") continue;
    const incident = byIncident.get(change.incident_id);
    found.push({ x, sign: incident ? kindSign(incident.kind) : "change" });
  }
  for (const incident of incidents) {
    const x = incident.evidence?.iteration;
    if (typeof x === "number" && kindSign(incident.kind) === "slow") found.push({ x, sign: "slow" });
  }
  return found.sort((a, b) => a.x - b.x);
}

function marks(u, facts, colour) {
  const ctx = u.ctx;
  const ratio = devicePixelRatio;
  let last = null;
  const groups = [];
  for (const event of events(facts)) {
    const x = u.valToPos(event.x, "x", true);
    if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
    if (last && x - last.x < MERGE_PX * ratio) last.signs.push(event.sign);
    else groups.push((last = { x, signs: [event.sign] }));
  }
  ctx.save();
  ctx.textAlign = "center";
  ctx.font = `${12 * ratio}px system-ui`;
  for (const { x, signs } of groups) {
    const sign = signs.includes("stop") ? "stop" : signs[0];
    ctx.strokeStyle = ctx.fillStyle = colour(`--sign-${sign}`);
    ctx.globalAlpha = 0.55;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, u.bbox.top);
    ctx.lineTo(x, u.bbox.top + u.bbox.height);
    ctx.stroke();
    ctx.globalAlpha = 1;
    ctx.fillText(SIGNS[sign] + (signs.length > 1 ? signs.length : ""), x, u.bbox.top - 6 * ratio);
  }
  ctx.restore();
}

function tip(u, { points }) {
  const index = u.cursor.idx;
  const point = index === null || index === undefined ? null : points[index];
  u.root.title = point ? `iteration ${point[0]}, epoch ${point[1]}: ${rate(point[2])} tokens/s, loss ${point[3]?.toFixed(4) ?? "–"}` : "";
}
