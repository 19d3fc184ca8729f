"""Process groups in one order; pipeline edges between any two degrees."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import (
    GroupKind,
    ParallelPlan,
    Place,
    ReplicaPlan,
    chunk_tokens,
    edge_chunks,
    edge_group_name,
    gradient_buckets,
    groups,
    needs_gather,
    receiver_tokens,
    routes,
)
from support.plans import DEMO_MODEL, demo_plan, models, plans, stage

DEGREES = st.integers(1, 9)


@given(DEGREES, DEGREES, st.integers(0, 300))
def test_chunks_bring_every_token_to_every_receiver_group_once(senders: int, receivers: int, tokens: int) -> None:
    chunks = edge_chunks(senders, receivers)
    assert {c.sender for c in chunks} == set(range(senders)), "every sender takes part"
    assert {c.receiver for c in chunks} == set(range(receivers))
    assert len({(c.sender, c.receiver) for c in chunks}) == len(chunks), "one chunk per pair"
    for side in ([c.sender for c in chunks], [c.receiver for c in chunks]):
        loads = [side.count(i) for i in set(side)]
        assert max(loads) - min(loads) <= 1, "chunks are spread evenly over both groups"
    if senders == receivers:
        assert all(c.is_whole and c.sender == c.receiver for c in chunks)
        assert not needs_gather(senders, receivers)
        assert all(chunk_tokens(c, tokens) == (0, tokens) for c in chunks)
        return
    ranges = [chunk_tokens(c, tokens) for c in chunks]
    assert [x for a, b in ranges for x in range(a, b)] == list(range(tokens))
    assert [b - a for a, b in ranges] == [len(p) for p in np.array_split(np.arange(tokens), len(chunks))]
    gathered = [receiver_tokens(chunks, r, tokens) for r in range(receivers)]
    assert [x for a, b in gathered for x in range(a, b)] == list(range(tokens))
    assert needs_gather(senders, receivers) == (receivers > 1)


def test_edges_refuse_empty_groups() -> None:
    with pytest.raises(ValueError, match="0 senders"):
        edge_chunks(0, 2)
    with pytest.raises(ValueError, match="receiver index 5"):
        receiver_tokens(edge_chunks(2, 3), 5, 10)


def test_routes_carry_plan_ranks() -> None:
    plan = ParallelPlan(1, (ReplicaPlan((stage(0, 4, 7, 3), stage(4, 8, 5)), 8),))
    assert [(r.source, r.destination) for r in routes(plan, Place(0, 0), Place(0, 1))] == [(7, 5), (3, 5)]
    assert [(r.source, r.destination) for r in routes(plan, Place(0, 1), Place(0, 0))] == [(5, 7), (5, 3)]


@settings(max_examples=50)
@given(st.data())
def test_groups_are_complete_unique_and_buildable_in_order(data: st.DataObject) -> None:
    model = data.draw(models())
    plan = data.draw(plans(model))
    found = groups(plan, model)
    assert len({g.name for g in found}) == len(found)
    assert all(len(set(g.ranks)) == len(g.ranks) and set(g.ranks) <= set(plan.world) for g in found)
    assert found[0].kind is GroupKind.WORLD
    assert found[0].ranks == plan.world
    of = {kind: [g for g in found if g.kind is kind] for kind in GroupKind}
    assert [g.ranks for g in of[GroupKind.TP]] == [
        s.ranks for r in plan.replicas for s in r.stages if len(s.ranks) > 1
    ], "in TP-index order"
    assert [g.ranks for g in of[GroupKind.BUCKET]] == [b.owners for b in gradient_buckets(plan, model) if b.is_shared]
    names = {g.name for g in of[GroupKind.EDGE]}
    for a, replica in enumerate(plan.replicas):
        for s in range(len(replica.stages) - 1):
            for route in routes(plan, Place(a, s), Place(a, s + 1)):
                names.remove(edge_group_name(route.source, route.destination, forward=True))
            for route in routes(plan, Place(a, s + 1), Place(a, s)):
                names.remove(edge_group_name(route.source, route.destination, forward=False))
    assert not names
    # Every rank builds its groups one after the other and waits for all members: the order must never lock.
    queue = {rank: [g for g in found if rank in g.ranks] for rank in plan.world}
    while any(queue.values()):
        ready = next(g for g in itertools.chain(*queue.values()) if all(queue[r][0] == g for r in g.ranks))
        for rank in ready.ranks:
            queue[rank].pop(0)


def test_names_depend_on_kind_and_members_only() -> None:
    names = [g.name for g in groups(demo_plan(1), DEMO_MODEL)]
    assert names == [g.name for g in groups(demo_plan(9), DEMO_MODEL)]
    assert names[:5] == ["world", "tp/0-1", "tp/2-3", "tp/4-5", "tp/6-7"]
    assert "edge/0>2/f" in names
    assert "edge/2>0/b" in names
    assert names[-6:] == ["bucket/0-1-4-5", "bucket/0-4", "bucket/1-5", "bucket/2-3-6-7", "bucket/2-6", "bucket/3-7"]


def test_large_groups_have_short_distinct_names() -> None:
    plan = ParallelPlan(1, tuple(ReplicaPlan((stage(0, 8, 2 * a, 2 * a + 1),), 1) for a in range(10)))
    large = [g for g in groups(plan, DEMO_MODEL) if len(g.ranks) > 8 and g.kind is GroupKind.BUCKET]
    assert len(large) == 3
    assert len({g.name for g in large}) == 3
    assert all(len(g.name) < 40 for g in large)
