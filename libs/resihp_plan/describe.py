"""A change of plan in words, for events, history and the terminal."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from resihp_plan.plan import ParallelPlan, ReplicaPlan, StagePlan

MAX_PARTS = 12
"""More changes than this are counted, not listed: the words go into messages and terminals."""
MAX_RANKS = 12
MAX_LISTED = 8


def describe_change(old: ParallelPlan, new: ParallelPlan) -> str:
    """`R1.S0 TP 2 -> 1; micro-batches 4+4 -> 5+3`. Replicas are named by their index in `old`, new ones by `new`.

    Replicas of the two plans are matched by the ranks that they share, so a dropped one does not rename the others.
    """
    matched = match_replicas(old, new)
    parts: list[str] = []
    for a, replica in enumerate(old.replicas):
        if a in matched:
            parts += _replica_changes(f"R{a}", replica, new.replicas[matched[a]])
        else:
            parts.append(f"R{a} dropped")
    for b, replica in enumerate(new.replicas):
        if b not in matched.values():
            parts.append(f"R{b} new with TP {_plus(len(s.ranks) for s in replica.stages)}")
    before, after = _counts(old), _counts(new)
    if before != after:
        parts.append(f"micro-batches {before} -> {after}")
    if old.migrations != new.migrations:
        parts.append(f"migrated units {len(old.migrations)} -> {len(new.migrations)}")
    if old.schedule != new.schedule:
        parts.append(f"schedule {old.schedule} -> {new.schedule}")
    if old.standby != new.standby:
        parts.append(f"standby {_ranks(old.standby)} -> {_ranks(new.standby)}")
    if len(parts) > MAX_PARTS:
        parts[MAX_PARTS:] = [f"and {len(parts) - MAX_PARTS} more changes"]
    return "; ".join(parts) or "same layout"


def describe_plan(plan: ParallelPlan) -> str:
    """`epoch 2: R0 [0,1 | 2,3] layers 4+4, 5 micro-batches; R1 ...`."""
    parts = [
        f"R{a} [{' | '.join(','.join(map(str, s.ranks)) for s in r.stages)}] "
        f"layers {_layers(r)}, {r.num_micro_batches} micro-batches"
        for a, r in enumerate(plan.replicas)
    ]
    if plan.standby:
        parts.append(f"standby {_ranks(plan.standby)}")
    return f"epoch {plan.epoch}: {'; '.join(parts)}"


def _replica_changes(name: str, old: ReplicaPlan, new: ReplicaPlan) -> Iterator[str]:
    if len(old.stages) != len(new.stages):
        yield (
            f"{name} stages {len(old.stages)} -> {len(new.stages)} "
            f"(TP {_plus(len(s.ranks) for s in old.stages)} -> {_plus(len(s.ranks) for s in new.stages)})"
        )
    else:
        for s, (before, after) in enumerate(zip(old.stages, new.stages, strict=True)):
            yield from _stage_changes(f"{name}.S{s}", before, after)
    if _layers(old) != _layers(new):
        yield f"{name} layers {_layers(old)} -> {_layers(new)}"


def _stage_changes(name: str, old: StagePlan, new: StagePlan) -> Iterator[str]:
    if len(old.ranks) != len(new.ranks):
        yield f"{name} TP {len(old.ranks)} -> {len(new.ranks)}"
    elif old.ranks != new.ranks:
        yield f"{name} ranks {_ranks(old.ranks)} -> {_ranks(new.ranks)}"
    if len(old.ranks) == len(new.ranks) and old.weights != new.weights:
        yield f"{name} weights {_plus(old.weights, ':')} -> {_plus(new.weights, ':')}"


def match_replicas(old: ParallelPlan, new: ParallelPlan) -> Mapping[int, int]:
    """Index in `old` -> index in `new`, by most common ranks; each at most once."""
    common: Counter[tuple[int, int]] = Counter()
    for rank in old.active:
        there, here = old.position(rank), new.position(rank)
        if there is not None and here is not None:
            common[there[0], here[0]] += 1
    matched: dict[int, int] = {}
    for (a, b), _ in sorted(common.items(), key=lambda item: (-item[1], item[0])):
        if a not in matched and b not in matched.values():
            matched[a] = b
    return matched


def _layers(replica: ReplicaPlan) -> str:
    return _plus(s.layer_stop - s.layer_start for s in replica.stages)


def _counts(plan: ParallelPlan) -> str:
    return _plus(r.num_micro_batches for r in plan.replicas)


def _plus(values: Iterable[int], sign: str = "+") -> str:
    """`5+3`; long lists with repetitions as `31+33+30x32`."""
    known = tuple(values)
    if len(known) <= MAX_LISTED:
        return sign.join(map(str, known))
    runs = [(value, len(tuple(group))) for value, group in itertools.groupby(known)]
    return sign.join(f"{count}x{value}" if count > 1 else str(value) for value, count in runs)


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) > MAX_RANKS:
        return f"{len(ranks)} ranks"
    return ",".join(map(str, ranks)) or "none"
