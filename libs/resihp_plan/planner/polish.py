"""Local improvement by exact times: a layer to another stage, a micro-batch to another replica.

Replicas are improved each for itself, all that pace the iteration in one step: moves in a single replica are blind on
symmetric plans, where the slowest replica is never alone.
"""

from __future__ import annotations

from dataclasses import replace

from resihp_plan.planner.shape import Layers, Pipeline, Shape
from resihp_plan.planner.space import Space

SAME = 1e-9
"""Relative difference below which times are equal."""


def polish(space: Space, shape: Shape, *, rounds: int = 12) -> Shape:
    """A shape that is not slower; deterministic. Shapes that exchange units stay as they are."""
    if shape.migrations:
        return shape
    for _ in range(rounds):
        better = _step(space, shape)
        if better is None:
            break
        shape = better
    return shape


def _step(space: Space, shape: Shape) -> Shape | None:
    """All pacing replicas faster than the pace, or None."""
    times = space.replica_s(shape, list(zip(shape.pipelines, shape.layers, shape.counts, strict=True)))
    pace = max(times) * (1 - SAME)
    layers, counts = list(shape.layers), list(shape.counts)
    found: dict[tuple[tuple[int, ...], Layers, int], Layers | None] = {}
    for a, seconds in enumerate(times):
        if seconds < pace:
            continue
        pipeline = shape.pipelines[a]
        key = (tuple(g.kind for g in pipeline), layers[a], counts[a])
        if key not in found:
            found[key] = _shifted(space, shape, pipeline, layers[a], counts[a], pace) if space.own_layers else None
        better = found[key]
        if better is not None:
            layers[a] = better
            continue
        taker = _taker(space, shape, layers, counts, a, pace) if space.own_counts else None
        if taker is None:
            return None
        counts[a] -= 1
        counts[taker] += 1
    return replace(shape, layers=tuple(layers), counts=tuple(counts))


def _shifted(space: Space, shape: Shape, pipeline: Pipeline, layers: Layers, count: int, pace: float) -> Layers | None:
    """One layer from one of the slowest stages to any other, if that is faster than `pace`."""
    last = len(pipeline) - 1
    load = [g.layer_s * n for g, n in zip(pipeline, layers, strict=True)]
    load[last] += pipeline[last].head_s
    givers = [s for s in sorted(range(last + 1), key=lambda s: (-load[s], s)) if layers[s] > 1][:3]
    takers = range(last + 1)
    trials = []
    for i in givers:
        for j in takers:
            if i != j and layers[j] < space.room(pipeline, j, shape.schedule):
                trial = list(layers)
                trial[i] -= 1
                trial[j] += 1
                trials.append(tuple(trial))
    if not trials:
        return None
    times = space.replica_s(shape, [(pipeline, t, count) for t in trials])
    best = min(range(len(trials)), key=lambda i: (times[i], i))
    return trials[best] if times[best] < pace else None


def _taker(space: Space, shape: Shape, layers: list[Layers], counts: list[int], giver: int, pace: float) -> int | None:
    """The replica that is over first with one micro-batch more, if that is before `pace`."""
    others = [a for a in range(len(counts)) if a != giver]
    if not others or counts[giver] < 1:
        return None
    times = space.replica_s(shape, [(shape.pipelines[a], layers[a], counts[a] + 1) for a in others])
    best = min(range(len(others)), key=lambda i: (times[i], i))
    return others[best] if times[best] < pace else None
