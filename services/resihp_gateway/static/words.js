// One name per device, one word per state, one format per unit: the same in every panel.

export const CODES = { FINISHED: 251, RETURNING: 252, UNKNOWN: 253, STANDBY: 254, STOPPED: 255 };
export const BANDS = ["healthy", "drifting", "slow", "veryslow", "stopped", "standby", "returning", "unknown"];
export const BAND_WORDS = {
  healthy: "healthy",
  drifting: "drifting",
  slow: "slow",
  veryslow: "very slow",
  stopped: "stopped",
  standby: "standby",
  returning: "returning",
  unknown: "no data",
};
const ATTENTION = new Set(["drifting", "slow", "veryslow", "stopped", "unknown"]);

/** The edges are the detector's: 0.80 = 1 / 1.25. */
export function band(code) {
  if (code === CODES.STOPPED) return "stopped";
  if (code === CODES.STANDBY) return "standby";
  if (code === CODES.RETURNING) return "returning";
  if (code === CODES.FINISHED) return "healthy";
  if (code === undefined || code === CODES.UNKNOWN) return "unknown";
  return code >= 90 ? "healthy" : code >= 80 ? "drifting" : code >= 50 ? "slow" : "veryslow";
}
export const needsAttention = (code) => ATTENTION.has(band(code));

/** Place of every rank that has one, now or before: {replica, stage, tp, ghost}. */
export function places(map) {
  const found = new Map();
  for (const [rank, [replica, stage, tp]] of Object.entries(map.ghosts)) {
    found.set(Number(rank), { replica, stage, tp, ghost: true });
  }
  map.replicas.forEach((replica, r) =>
    replica.stages.forEach((stage, s) => stage.ranks.forEach((rank, t) => found.set(rank, { replica: r, stage: s, tp: t }))),
  );
  return found;
}
export const placeName = (place) => (place ? `R${place.replica}·S${place.stage}·T${place.tp}` : "");
export const deviceName = (rank, known) => placeName(known?.get(rank)) || `rank ${rank}`;

export const BASIS = {
  constants: "by constants measured on this job",
  pace: "at this job's pace before it",
  nominal: "nominal: compares plans, says nothing of this machine",
};
export const CHANGE_WORDS = { initial: "first plan", recovery: "recovery", planned: "planned" };
const KINDS = {
  worker_lost: ["stopped", "stop"],
  worker_frozen: ["froze, was fenced", "stop"],
  node_lost: ["stopped with its node", "stop"],
  link_broken: ["lost a link", "link"],
  link_slow: ["has a slow link", "link"],
  link_recovered: ["has its link back", "good"],
  device_suspected: ["seems slow", "slow"],
  device_slow: ["is slow", "slow"],
  device_recovered: ["is as fast as before", "good"],
  workload_shift: ["work changed for all", "link"],
  state_diverged: ["holds a state that differs from its copies", "stop"],
  state_corrupted: ["held the damaged state, now repaired", "good"],
  job_slow: ["iterations take too long", "slow"],
  job_recovered: ["iterations are as before", "good"],
  job_hung: ["is waited for: no progress", "stop"],
  heterogeneity: ["differs for good", "link"],
};
export const KIND_NAMES = Object.keys(KINDS);
const key = (kind) => kind.replace(/([a-z])([A-Z])/g, "$1_$2").toLowerCase();
export const kindWord = (kind) => KINDS[key(kind)]?.[0] ?? kind;
export const kindSign = (kind) => KINDS[key(kind)]?.[1] ?? "link";
export const SIGNS = { stop: "✕", slow: "▼", link: "⚡", good: "▲", change: "◆" };

/** What the numbers of an incident say, in one clause. */
export function incidentFact(incident) {
  const v = incident.verdict ?? {};
  const e = incident.evidence ?? {};
  const facts = [];
  if (kindSign(incident.kind) === "slow" && typeof v.p === "number") facts.push(`p = ${v.p.toFixed(2)}`);
  if (typeof v.confidence === "number" && v.confidence < 1) facts.push(`${(v.confidence * 100).toFixed(1)} % sure`);
  if (typeof e.exit_code === "number") facts.push(e.exit_code === -9 ? "SIGKILL" : `exit code ${e.exit_code}`);
  if (typeof e.detect_s === "number") facts.push(`noticed in ${seconds(e.detect_s)}`);
  return facts.join(", ");
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value < 0.9995) return `${trim(value * 1000)} ms`;
  if (value < 120) return `${value.toFixed(2)} s`;
  if (value < 7200) return `${(value / 60).toFixed(1)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}
export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1e6) return `${trim(value / 1e6)}M`;
  if (value >= 1e3) return `${(value / 1e3).toFixed(value >= 1e5 ? 0 : 1)}k`;
  return value.toFixed(0);
}
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let value = bytes;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (value < 1000 || unit === "TB") return `${unit === "B" ? value : trim(value)} ${unit}`;
    value /= 1000;
  }
}
export const percent = (part, whole) => (part && whole ? `${((100 * part) / whole).toFixed(0)} %` : "–");
export function signed(ratio) {
  return ratio === null || ratio === undefined ? "–" : `${Math.abs(ratio) < 0.0005 ? "" : ratio > 0 ? "+" : "−"}${Math.abs(100 * ratio).toFixed(1)} %`;
}
/** Plan texts come with ASCII arrows. */
export const arrows = (text) => (text ?? "").replaceAll("->", "→");
export const clock = (iso) => (iso ? new Date(iso).toLocaleTimeString("en-GB") : "–");
export const moment = (iso) => (iso ? `${new Date(iso).toLocaleDateString("en-CA")} ${clock(iso)}` : "–");
const trim = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

/** The phases of a change, in order; `abort` runs beside `plan`. */
export const PHASES = ["detect", "plan", "rebuild", "move", "redo"];
export const PHASE_WORDS = {
  detect: "last sign of life to the agent's notice",
  plan: "notice to the command with the new plan",
  abort: "slowest survivor out of its operation (beside planning)",
  rebuild: "process groups of the new plan",
  move: "shards to their new holders, verified",
  redo: "the interrupted iteration, again",
};
/** Nothing was interrupted by a planned change. */
export const PLANNED_WORDS = { ...PHASE_WORDS, detect: "nothing failed", plan: "request to the command with the new plan", redo: "the first iteration of the new plan" };
export const PROOF_WORDS = {
  layers_complete: "every layer is held, by exactly the ranks of the plan",
  samples_once: "every sample of the iteration was used exactly once",
  digests_equal: "every moved slice has the same digest on both sides",
  plan_digest_equal: "all ranks run the same plan",
};
