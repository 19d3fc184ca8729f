"""Very few groups: every order of them in every division into pipelines, by exact times.

The estimates of the search ignore in which order a pipeline has its slow groups; with few micro-batches that matters.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence

from resihp_plan.planner.level import level
from resihp_plan.planner.shape import Layers, Pipeline, Shape
from resihp_plan.planner.space import Space
from resihp_plan.planner.tpgroups import TpGroup

MAX_GROUPS = 4
MAX_MICRO_BATCHES = 32
KEPT = 3
"""Shapes that are returned."""
Best = tuple[list[float], list[Layers]]
"""For every number of micro-batches: seconds, with which layers."""


def every_order(groups: Sequence[TpGroup], space: Space, most: int) -> list[Shape]:
    """The fastest few shapes of at most so many pipelines out of some or all of the groups, fastest first; none for
    more groups or micro-batches than this is meant for. Layers: the exact min-max and what differs from it by one."""
    total = space.workload.num_micro_batches
    if len(groups) > MAX_GROUPS or total > MAX_MICRO_BATCHES:
        return []
    known: dict[tuple[int, ...], Best | None] = {}
    found: dict[tuple[tuple[int, ...], ...], tuple[float, Shape]] = {}
    for pipelines in _divisions(groups, most):
        kinds = tuple(sorted(tuple(g.kind for g in p) for p in pipelines))
        if kinds in found:
            continue  # the same with other devices
        bests = []
        for p in pipelines:
            key = tuple(g.kind for g in p)
            if key not in known:
                known[key] = _best(p, space, total)
            bests.append(known[key])
        fitting = [b for b in bests if b is not None]
        if len(fitting) < len(bests):
            continue
        counts = _counts([times for times, _ in fitting], total)
        layers = tuple(each[m] for (_, each), m in zip(fitting, counts, strict=True))
        shape = Shape(pipelines, layers, counts, space.schedule)
        seconds = max(times[m] for (times, _), m in zip(fitting, counts, strict=True)) + space.sync_s(shape)
        found[kinds] = seconds, shape
    best = sorted(found.values(), key=lambda f: (f[0], [g.ranks for p in f[1].pipelines for g in p]))
    return [shape for _, shape in best[:KEPT]]


def _divisions(groups: Sequence[TpGroup], most: int) -> Iterator[tuple[Pipeline, ...]]:
    for n in range(len(groups), 0, -1):
        for order in itertools.permutations(groups, n):
            for cuts in itertools.chain.from_iterable(
                itertools.combinations(range(1, n), k) for k in range(min(n, most))
            ):
                parts = tuple(order[a:b] for a, b in itertools.pairwise((0, *cuts, n)))
                if all(a[0].ranks < b[0].ranks for a, b in itertools.pairwise(parts)):  # each set of pipelines once
                    yield parts


def _best(pipeline: Pipeline, space: Space, total: int) -> Best | None:
    stages = range(len(pipeline))
    caps = [space.room(pipeline, s, space.schedule) for s in stages]
    head = [0.0] * (len(pipeline) - 1) + [pipeline[-1].head_s]
    middle = level(head, [g.layer_s for g in pipeline], space.cost.model.num_layers, least=1, caps=caps)
    if middle is None:
        return None
    tried = [middle]
    for i, j in itertools.permutations(stages, 2):
        if middle[i] > 1 and middle[j] < caps[j]:
            tried.append(tuple(n - (s == i) + (s == j) for s, n in enumerate(middle)))
    shape = Shape((pipeline,), (middle,), (total,), space.schedule)
    wanted = [(pipeline, layers, m) for m in range(total + 1) for layers in tried]
    times = space.replica_s(shape, wanted)
    seconds, chosen = [], []
    for m in range(total + 1):
        row = times[m * len(tried) : (m + 1) * len(tried)]
        best = min(range(len(tried)), key=lambda i: (row[i], i))
        seconds.append(row[best])
        chosen.append(tried[best])
    return seconds, chosen


def _counts(times: Sequence[Sequence[float]], total: int) -> tuple[int, ...]:
    """One micro-batch after the other to the pipeline that is over first with it: optimal, since times only grow."""
    counts = [0] * len(times)
    heap = [(t[1], a) for a, t in enumerate(times)]
    heapq.heapify(heap)
    for _ in range(total):
        _, a = heap[0]
        counts[a] += 1
        if counts[a] < total:
            heapq.heapreplace(heap, (times[a][counts[a] + 1], a))
    return tuple(counts)
