"""Pictures of a change, as SVG: for the dashboard (its colours), and for reports (the colours written here).

Old plan above new plan on one layer axis: width = layers, height = devices of the tensor-parallel group, a dropped
share dashed, a moved border slanted. Replicas that changed alike are drawn once; unchanged ones are only named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from resihp_gateway.wording import milliseconds
from resihp_plan.describe import match_replicas
from resihp_plan.plan import ParallelPlan, ReplicaPlan, StagePlan

WIDTH, LEFT, RIGHT, GAP, TOP = 920, 70, 124, 34, 22
PHASES = ("detect", "plan", "abort", "rebuild", "move", "redo")
_STYLE = """
text{font:12px system-ui,"DejaVu Sans",sans-serif;fill:var(--muted,#5b6474)}
.name{font-size:13px;font-weight:650;fill:var(--text,#171b23)}
.inside{text-anchor:middle;font-weight:600;fill:var(--on-healthy,#1a2740)}
.full{fill:var(--healthy,#bdcde9)}.changed .inside{fill:var(--text,#171b23)}
.changed .full{fill:var(--changed,#d3e0f8);stroke:var(--accent,#1d5bd6);stroke-width:1.5}
.gap{fill:none;stroke:var(--muted,#5b6474);stroke-dasharray:4 3}
.cut{stroke:var(--card,#fff);opacity:.75}.border{stroke:var(--line,#d8dee8);stroke-width:1.5}
.moved{stroke:var(--accent,#1d5bd6);stroke-width:3}.gone{font-weight:600;fill:var(--bad,#b3261e)}
.detect{fill:#4f7cc0}.plan{fill:#c8a21d}.abort{fill:#9aa3b2}.rebuild{fill:#8a63b0}.move{fill:#2f9a8b}.redo{fill:#8d95a3}
"""


@dataclass
class _Pair:
    """A replica before and after; `names` of all that changed in the same way."""

    old: ReplicaPlan | None
    new: ReplicaPlan | None
    names: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return _shape(self.old) != _shape(self.new)


def plans_svg(old: ParallelPlan | None, new: ParallelPlan, words: str) -> str:
    """`words`: the difference, for those who cannot see the picture."""
    pairs = _pairs(old, new)
    shown = [pair for pair in pairs if pair.changed] or pairs[:1]
    same = [pair for pair in pairs if pair not in shown]
    parts, y = [], 0.0
    for pair in shown:
        drawn, height = _draw(pair, y)
        parts.append(drawn)
        y += height + 16
    notes = []
    if same:
        names = sorted((name for pair in same for name in pair.names), key=lambda name: (len(name), name))
        notes.append(f"unchanged: {_named(names)}")
    if new.standby:
        notes.append(f"standing by: {len(new.standby)} devices")
    if notes:
        parts.append(f'<text x="0" y="{y + 8}">{escape("; ".join(notes))}</text>')
        y += 16
    return _svg(y, f"{', '.join(_named(p.names) for p in shown)}: {words or 'first plan'}", "".join(parts))


def phases_svg(phases_s: Mapping[str, float | None]) -> str:
    """Bars on one time axis; `abort` runs beside `plan`."""
    known = {phase: phases_s.get(phase) or 0.0 for phase in PHASES}
    total = sum(s for phase, s in known.items() if phase != "abort") or 1.0
    scale = (WIDTH - LEFT - RIGHT) / total
    parts, begun, y = [], 0.0, 0
    for phase, span in known.items():
        start = begun - known["plan"] if phase == "abort" else begun
        width = max(1.0, min(span, total - start) * scale)
        parts.append(
            f'<text x="0" y="{y + 14}">{phase}</text>'
            f'<rect class="{phase}" x="{LEFT + start * scale:.1f}" y="{y + 3}" width="{width:.1f}" height="14" rx="3"/>'
            f'<text x="{WIDTH - RIGHT + 12}" y="{y + 14}">{milliseconds(span)}</text>'
        )
        begun += 0.0 if phase == "abort" else span
        y += 24
    label = ", ".join(f"{phase} {milliseconds(span)}" for phase, span in known.items())
    return _svg(y, f"phases: {label}", "".join(parts))


def _svg(height: float, label: str, content: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(label)}"><style>{_STYLE}</style>{content}</svg>'
    )


def _pairs(old: ParallelPlan | None, new: ParallelPlan) -> list[_Pair]:
    found: dict[str, _Pair] = {}

    def add(name: str, before: ReplicaPlan | None, after: ReplicaPlan | None) -> None:
        key = json.dumps([_shape(before), _shape(after)])
        found.setdefault(key, _Pair(before, after)).names.append(name)

    if old is None:
        for b, replica in enumerate(new.replicas):
            add(f"R{b}", None, replica)
    else:
        matched = match_replicas(old, new)
        for a, replica in enumerate(old.replicas):
            add(f"R{a}", replica, new.replicas[matched[a]] if a in matched else None)
        for b, replica in enumerate(new.replicas):
            if b not in matched.values():
                add(f"new R{b}", None, replica)
    return sorted(found.values(), key=lambda pair: len(pair.names))


def _shape(replica: ReplicaPlan | None) -> object:
    if replica is None:
        return None
    stages = [[s.layer_start, s.layer_stop, len(s.ranks), list(s.weights)] for s in replica.stages]
    return [replica.num_micro_batches, stages]


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:2])} and {len(names) - 2} others"


def _draw(pair: _Pair, top: float) -> tuple[str, float]:
    both = [replica for replica in (pair.old, pair.new) if replica is not None]
    layers = max(stage.layer_stop for replica in both for stage in replica.stages)
    tp = max(len(stage.ranks) for replica in both for stage in replica.stages)
    height = min(64.0, max(30.0, tp * 15.0))
    scale = (WIDTH - LEFT - RIGHT) / layers
    parts = [f'<text class="name" x="0" y="{top + 13:.1f}">{escape(_named(pair.names))}</text>']
    y = top + TOP
    if pair.old is not None and pair.new is not None:
        parts += _borders(pair.old, pair.new, y + height, scale)
    for label, replica, other in (("old", pair.old, pair.new), ("new", pair.new, pair.old)):
        if replica is not None:
            parts.append(_row(label if other else "plan", replica, other, y, height, tp, scale))
            y += height + GAP
    if pair.new is None:
        parts.append(f'<text class="gone" x="{LEFT}" y="{y - GAP + 16:.1f}">dropped</text>')
    return "".join(parts), y - GAP - top + (20 if pair.new is None else 4)


def _row(
    label: str, replica: ReplicaPlan, other: ReplicaPlan | None, y: float, height: float, tp: int, scale: float
) -> str:
    middle = y + height / 2 + 4
    parts = [f'<text x="0" y="{middle:.1f}">{label}</text>']
    for s, stage in enumerate(replica.stages):
        twin = other.stages[s] if other is not None and s < len(other.stages) else None
        parts.append(_block(s, stage, twin, y, height, tp, scale, alone=other is None))
    count = replica.num_micro_batches
    parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{middle:.1f}">{count} micro-batches</text>')
    return "".join(parts)


def _block(
    s: int, stage: StagePlan, twin: StagePlan | None, y: float, height: float, tp: int, scale: float, *, alone: bool
) -> str:
    num_layers, degree = stage.layer_stop - stage.layer_start, len(stage.ranks)
    unit = height / tp
    own, x, wide = degree * unit, LEFT + stage.layer_start * scale, num_layers * scale
    changed = not alone and (twin is None or _stage_shape(twin) != _stage_shape(stage))
    weights = ":".join(map(str, stage.weights))
    text = f"{num_layers} L · TP {degree}" if wide > 70 else str(num_layers) if wide > 30 else ""
    if wide > 130 and len(set(stage.weights)) > 1:
        text += f" ({weights})"
    title = f"S{s}: layers {stage.layer_start} to {stage.layer_stop - 1}, ranks {', '.join(map(str, stage.ranks))}"
    parts = [f'<g class="{"changed" if changed else "kept"}"><title>{title}, weights {weights}</title>']
    if own < height - 1:
        gap = height - own - 1.5
        parts.append(_rect("gap", x + 1.5, y + 0.75, wide - 3, gap))
    bottom = y + height - own
    parts.append(_rect("full", x + 0.75, bottom, wide - 1.5, own))
    for t in range(1, degree):
        line = bottom + t * unit
        parts.append(f'<line class="cut" x1="{x + 3:.1f}" x2="{x + wide - 3:.1f}" y1="{line:.1f}" y2="{line:.1f}"/>')
    parts.append(f'<text class="inside" x="{x + wide / 2:.1f}" y="{y + height - own / 2 + 4:.1f}">{text}</text></g>')
    return "".join(parts)


def _stage_shape(stage: StagePlan) -> tuple[object, ...]:
    return stage.layer_start, stage.layer_stop, len(stage.ranks), stage.weights


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    size = f'width="{max(1.0, width):.1f}" height="{max(1.0, height):.1f}"'
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" {size} rx="3"/>'


def _borders(old: ReplicaPlan, new: ReplicaPlan, top: float, scale: float) -> list[str]:
    parts = []
    for before, after in zip(old.stages[:-1], new.stages[:-1], strict=False):
        a, b = before.layer_stop, after.layer_stop
        kind = "border" if a == b else "border moved"
        parts.append(
            f'<line class="{kind}" x1="{LEFT + a * scale:.1f}" y1="{top + 3:.1f}" '
            f'x2="{LEFT + b * scale:.1f}" y2="{top + GAP - 3:.1f}"/>'
        )
    return parts
