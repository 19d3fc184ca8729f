"""Every process group of an epoch, in the one order in which all ranks build them.

Each rank builds the groups that contain it, in the order of this list. Because the order is total, the first unbuilt
group of the list is always the next one of all its members: no rank can wait for another in a circle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from resihp_plan.buckets import gradient_buckets
from resihp_plan.edges import Place, routes
from resihp_plan.model import ModelSpec
from resihp_plan.plan import ParallelPlan


class GroupKind(StrEnum):
    """What a group is for."""

    WORLD = "world"
    """Vote, join header, state moves; ascending ranks, so the index is the torch rank of the epoch."""
    TP = "tp"
    """A stage's tensor-parallel group, in TP-index order."""
    EDGE = "edge"
    """(sender, receiver) of one direction of a pipeline edge."""
    BUCKET = "bucket"
    """Owners of a gradient bucket, ascending."""
    COPY = "copy"
    """Two ranks of which one or both keep a copy of the other's state, ascending."""


@dataclass(frozen=True)
class GroupSpec:
    """A process group. The name depends on kind and members only and is unique in an epoch."""

    name: str
    kind: GroupKind
    ranks: tuple[int, ...]
    """Plan ranks; the index is the torch rank inside the group."""


MAX_LISTED_MEMBERS = 8
"""Groups with more members are named by a digest of the members, so that store keys stay short."""


def groups(plan: ParallelPlan, model: ModelSpec, guards: Mapping[int, int] | None = None) -> tuple[GroupSpec, ...]:
    """World, TP groups, edges (both directions), bucket groups, and for each pair of ward and guardian in `guards` one
    for copies. Groups of one rank are left out, except the world."""
    tp = (
        _group(GroupKind.TP, stage.ranks)
        for replica in plan.replicas
        for stage in replica.stages
        if len(stage.ranks) > 1
    )
    buckets = (_group(GroupKind.BUCKET, b.owners) for b in gradient_buckets(plan, model) if b.is_shared)
    pairs = sorted({(min(pair), max(pair)) for pair in (guards or {}).items()})
    copies = (_group(GroupKind.COPY, pair) for pair in pairs)
    return (GroupSpec("world", GroupKind.WORLD, plan.world), *tp, *_edges(plan), *buckets, *copies)


def edge_group_name(source: int, destination: int, *, forward: bool) -> str:
    """Name of the two-rank group that carries activations (`forward`) or gradients from `source` to `destination`."""
    return f"edge/{source}>{destination}/{'f' if forward else 'b'}"


def group_name(kind: GroupKind, ranks: tuple[int, ...]) -> str:
    """Name of a TP, bucket or copy group."""
    if len(ranks) <= MAX_LISTED_MEMBERS:
        return f"{kind}/{'-'.join(map(str, ranks))}"
    digest = hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]
    return f"{kind}/{len(ranks)}:{digest}"


def _group(kind: GroupKind, ranks: tuple[int, ...]) -> GroupSpec:
    return GroupSpec(group_name(kind, ranks), kind, ranks)


def _edges(plan: ParallelPlan) -> Iterator[GroupSpec]:
    for here, there in edge_places(plan):
        for sender, receiver, forward in ((here, there, True), (there, here, False)):
            for route in routes(plan, sender, receiver):
                name = edge_group_name(route.source, route.destination, forward=forward)
                yield GroupSpec(name, GroupKind.EDGE, (route.source, route.destination))


def edge_places(plan: ParallelPlan) -> Iterator[tuple[Place, Place]]:
    """(stage, next stage) of every edge that activations cross: those inside each replica, also if it idles, then those
    that migrated units use between replicas."""
    own = [(Place(a, s), Place(a, s + 1)) for a, rep in enumerate(plan.replicas) for s in range(len(rep.stages) - 1)]
    yield from own
    crossing: set[tuple[Place, Place]] = set()
    for migration in plan.migrations:
        a, m = migration.replica, migration.micro_batch
        for s in (migration.stage - 1, migration.stage):
            if 0 <= s < len(plan.replicas[a].stages) - 1:
                crossing.add((Place(plan.executor(a, s, m), s), Place(plan.executor(a, s + 1, m), s + 1)))
    yield from sorted(crossing.difference(own))
