// The cluster map: row = replica, group = stage, cell = device. Plain DOM, built once per plan; a new health vector only
// touches the cells whose band (or shown digits) changed, so that thousands of devices cost next to nothing.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-standalone.module.js";
import { BANDS, BAND_WORDS, band, needsAttention, placeName } from "./words.js";

const BIG = 32;
const MEDIUM = 512;

export function decode(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

export function Cluster({ map, health, known, selected, onSelect }) {
  const root = useRef(null);
  const view = useRef(null);
  const [counts, setCounts] = useState({});
  useEffect(() => {
    view.current = map ? new MapView(root.current, map, known, onSelect) : null;
  }, [map]);
  useEffect(() => {
    if (view.current && health) setCounts(view.current.paint(decode(health)));
  }, [map, health]);
  useEffect(() => view.current?.select(selected), [map, selected]);
  return html`<section class="card cluster" aria-labelledby="cluster-title">
    <header>
      <h2 id="cluster-title">Cluster</h2>
      <p class="hint">row = replica, group = stage, cell = device</p>
      <ul class="legend" aria-label="Devices by state">
        ${BANDS.filter((b) => counts[b] || b === "healthy" || b === "slow" || b === "stopped").map(
          (b) => html`<li key=${b}><i class="swatch ${b}"></i>${BAND_WORDS[b]} <b>${counts[b] ?? 0}</b></li>`,
        )}
      </ul>
    </header>
    <div class="map-scroll"><div ref=${root} class="map" role="grid" aria-label="Cluster map"></div></div>
    ${!map && html`<p class="empty">No plan yet: the job waits for devices.</p>`}
  </section>`;
}

class MapView {
  constructor(root, map, known, onSelect) {
    this.cells = new Map();
    this.order = [];
    this.known = known;
    this.codes = new Uint8Array();
    this.onSelect = onSelect;
    this.mode = known.size + map.pool.length <= BIG ? "big" : known.size <= MEDIUM ? "medium" : "small";
    root.replaceChildren(...this.rows(map));
    root.className = `map ${this.mode}`;
    const stages = Math.max(1, ...map.replicas.map((r) => r.stages.length));
    const width = Math.max(1, ...[...groups(map).values()].map((ranks) => ranks.length));
    root.style.setProperty("--stages", stages);
    root.style.setProperty("--tp", width);
    root.style.setProperty("--across", this.mode === "medium" ? Math.ceil(width / (width > 2 ? 2 : 1)) : width);
    this.root = root;
    root.onclick = (event) => this.pick(event.target.closest("[data-rank]"));
    root.onkeydown = (event) => this.key(event);
    root.onmouseover = (event) => this.explain(event.target.closest("[data-rank]"));
    this.focusable(this.order[0]?.[0]);
  }

  rows(map) {
    const found = [];
    const members = groups(map);
    const stages = Math.max(0, ...map.replicas.map((r) => r.stages.length));
    const same = Array.from({ length: stages }, (_, s) => sameLayers(map, s));
    const head = element("div", "map-row map-head", { role: "row" });
    head.append(element("span", "corner", { role: "columnheader", "aria-label": "replica" }));
    for (let s = 0; s < stages; s++) {
      const label = element("span", "stage", { role: "columnheader" });
      label.append(element("b", "", {}, `S${s}`));
      label.append(element("small", "", {}, `${same[s].join("–")} L`));
      head.append(label);
    }
    found.push(head);
    map.replicas.forEach((replica, r) => {
      const row = element("div", "map-row", { role: "row" });
      const label = element("span", "replica", { role: "rowheader" });
      label.append(element("b", "", {}, `R${r}`));
      if (this.mode !== "small") label.append(element("small", "", { title: "micro-batches" }, `${replica.num_micro_batches} µb`));
      row.append(label);
      const line = [];
      replica.stages.forEach((stage, s) => {
        const group = element("span", "group", { role: "presentation" });
        for (const rank of members.get(`${r}.${s}`)) {
          const cell = this.cell(rank);
          line.push(rank);
          group.append(cell);
        }
        if (same[s].length > 1 && this.mode === "big") {
          group.append(element("small", "layers", {}, `${stage.layers[1] - stage.layers[0]} layers`));
        }
        row.append(group);
      });
      this.order.push(line);
      found.push(row);
    });
    if (map.pool.length) {
      const row = element("div", "map-row pool", { role: "row" });
      row.append(element("span", "replica", { role: "rowheader" }, "–"));
      const group = element("span", "group", { role: "presentation" });
      group.append(...map.pool.map((rank) => this.cell(rank)));
      this.order.push([...map.pool]);
      row.append(group);
      found.push(row);
    }
    return found;
  }

  cell(rank) {
    const cell = element("span", "cell unknown", { role: "gridcell", tabindex: "-1" });
    cell.dataset.rank = rank;
    if (this.mode === "big") {
      cell.append(element("b", "", {}, `rank ${rank}`), element("small", "", {}, ""));
    }
    this.cells.set(rank, { cell, band: "", text: null });
    return cell;
  }

  paint(codes) {
    this.codes = codes;
    const counts = {};
    for (const [rank, known] of this.cells) {
      const code = codes[rank];
      const now = band(code);
      counts[now] = (counts[now] ?? 0) + 1;
      const text = this.text(code, now);
      if (now === known.band && text === known.text) continue;
      if (now !== known.band) {
        known.cell.className = `cell ${now}`;
        known.band = now;
      }
      if (text !== known.text) {
        known.text = text;
        if (this.mode === "big") known.cell.lastChild.textContent = text;
        else known.cell.textContent = this.mode === "medium" ? text : "";
      }
      known.cell.setAttribute("aria-label", this.sentence(rank));
    }
    return counts;
  }

  text(code, now) {
    if (this.mode === "big") return code <= 100 ? `p ${(code / 100).toFixed(2)}` : BAND_WORDS[now];
    return code < 90 ? `.${String(code).padStart(2, "0")}` : "";
  }

  sentence(rank) {
    const place = placeName(this.known.get(rank));
    const code = this.codes[rank];
    const p = code <= 100 ? `, p = ${(code / 100).toFixed(2)}` : "";
    return `${place ? `${place}, ` : ""}rank ${rank}, ${BAND_WORDS[band(code)]}${p}`;
  }

  explain(cell) {
    if (cell) cell.title = this.sentence(Number(cell.dataset.rank));
  }

  pick(cell) {
    if (!cell) return;
    this.focusable(Number(cell.dataset.rank));
    this.onSelect(Number(cell.dataset.rank));
  }

  select(rank) {
    this.root.querySelector("[aria-selected]")?.removeAttribute("aria-selected");
    this.cells.get(rank)?.cell.setAttribute("aria-selected", "true");
  }

  focusable(rank) {
    this.root.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    this.cells.get(rank)?.cell.setAttribute("tabindex", "0");
  }

  key(event) {
    const cell = event.target.closest("[data-rank]");
    if (!cell) return;
    const rank = Number(cell.dataset.rank);
    const y = this.order.findIndex((line) => line.includes(rank));
    const x = this.order[y].indexOf(rank);
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Enter" || event.key === " ") this.pick(cell);
    else if (event.key === "n") this.next(y, x);
    else if (move) {
      const line = this.order[y + move[0]];
      if (line) this.go(line[Math.min(Math.max(x + move[1], 0), line.length - 1)]);
    } else return;
    event.preventDefault();
  }

  /** `n`: to the next device that needs attention. */
  next(y, x) {
    const all = this.order.flat();
    const from = all.indexOf(this.order[y][x]);
    const found = [...all.slice(from + 1), ...all.slice(0, from + 1)].find((rank) => needsAttention(this.codes[rank]));
    if (found !== undefined) this.go(found);
  }

  go(rank) {
    this.focusable(rank);
    this.cells.get(rank).cell.focus();
  }
}

/** "replica.stage" -> its ranks and those that left it, ordered so that nobody moves when somebody goes. */
function groups(map) {
  const found = new Map();
  map.replicas.forEach((replica, r) => replica.stages.forEach((stage, s) => found.set(`${r}.${s}`, [...stage.ranks])));
  for (const [rank, [r, s]] of Object.entries(map.ghosts)) found.get(`${r}.${s}`).push(Number(rank));
  for (const ranks of found.values()) ranks.sort((a, b) => a - b);
  return found;
}

function sameLayers(map, s) {
  const counts = new Set(map.replicas.filter((r) => r.stages[s]).map((r) => r.stages[s].layers[1] - r.stages[s].layers[0]));
  return counts.size === 1 ? [...counts] : [Math.min(...counts), Math.max(...counts)];
}

function element(tag, name, attributes = {}, text = null) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}
