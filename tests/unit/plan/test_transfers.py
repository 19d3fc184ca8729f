"""Transfers deliver exactly every slice of the new layout."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import Interval, Layout, ModelSpec, ParallelPlan, ReplicaPlan, Transfers, layout, transfers
from support.plans import DEMO_MODEL, demo_plan, models, plans, stage


def _execute(old: Layout, new: Layout, found: Transfers, model: ModelSpec) -> None:
    """Do the moves on real arrays; every element of the new layout must arrive exactly once, with the right value."""
    whole = {t.name: np.arange(np.prod(t.shape)).reshape(t.shape) for t in model.tensors}
    dim = {t.name: t.dim for t in model.tensors}
    missing = {(n, x) for n, a, b in found.missing for x in range(a, b)}

    def cut(name: str, start: int, stop: int) -> np.ndarray:
        return np.take(whole[name], np.arange(start, stop), axis=dim[name])

    arrived: Counter[tuple[int, str, int]] = Counter()
    for move in found.moves:
        i = old.shards(move.source)[move.tensor]
        sent = np.take(
            cut(move.tensor, i.start, i.stop),
            np.arange(move.start - i.start, move.stop - i.start),
            axis=dim[move.tensor],
        )
        assert np.array_equal(sent, cut(move.tensor, move.start, move.stop))
        arrived.update((move.destination, move.tensor, x) for x in range(move.start, move.stop))
    for kept in found.kept:
        assert old.shards(kept.rank)[kept.tensor].covers(Interval(kept.start, kept.stop))
        arrived.update((kept.rank, kept.tensor, x) for x in range(kept.start, kept.stop))
    wanted = {
        (rank, name, x)
        for rank in new.ranks
        for name, i in new.shards(rank).items()
        for x in range(i.start, i.stop)
        if (name, x) not in missing
    }
    assert set(arrived) == wanted
    assert set(arrived.values()) <= {1}


@settings(max_examples=40)
@given(st.data())
def test_every_slice_arrives_exactly_once(data: st.DataObject) -> None:
    model = data.draw(models())
    old, new = (layout(data.draw(plans(model, max_rank=20)), model) for _ in range(2))
    alive = set(data.draw(st.lists(st.sampled_from(range(20)), max_size=20)))
    nodes = {r: f"n{r // 4}" for r in range(20)}
    found = transfers(old, new, alive=alive, node_of=data.draw(st.sampled_from([None, nodes])))
    assert all(m.source != m.destination and m.source in alive and m.start < m.stop for m in found.moves)
    for name, start, stop in found.missing:
        holders = [i for rank, i in old.holders(name) if rank in alive]
        assert all(not len(i.overlap(Interval(start, stop))) for i in holders)
    _execute(old, new, found, model)


@settings(max_examples=40)
@given(st.data())
def test_an_unchanged_layout_moves_nothing(data: st.DataObject) -> None:
    model = data.draw(models())
    held = layout(data.draw(plans(model)), model)
    found = transfers(held, held, alive=held.ranks)
    assert found.moves == ()
    assert found.missing == ()
    assert found.num_elements(model) == 0


def test_packets_are_sorted_and_neighbours_joined() -> None:
    new = ParallelPlan(2, (ReplicaPlan((stage(0, 8, 9),), 8),))
    found = transfers(layout(demo_plan(), DEMO_MODEL), layout(new, DEMO_MODEL), alive=range(8))
    assert list(found.moves) == sorted(found.moves)
    packets = Counter((m.source, m.tensor) for m in found.moves)
    assert set(packets.values()) == {1}, "a contiguous slice from one source is one move"
    assert {m.destination for m in found.incoming(9)} == {9}
    assert sum(len(found.outgoing(r)) for r in range(8)) == len(found.moves)


def test_source_is_self_then_node_then_least_loaded() -> None:
    old = layout(demo_plan(), DEMO_MODEL)
    shrunk = ParallelPlan(
        2,
        (
            ReplicaPlan((stage(0, 4, 0, 1), stage(4, 8, 2)), 4),
            ReplicaPlan((stage(0, 4, 4, 5), stage(4, 8, 6, 7)), 4),
        ),
    )
    new = layout(shrunk, DEMO_MODEL)
    far = transfers(old, new, alive=set(range(8)) - {3}, node_of={r: "a" if r < 4 else "b" for r in range(8)})
    assert {(m.source, m.destination) for m in far.moves} == {(7, 2)}
    near = transfers(old, new, alive=range(8), node_of={r: "a" if r < 4 else "b" for r in range(8)})
    assert {(m.source, m.destination) for m in near.moves} == {(3, 2)}, "same node first"
    joiner = ParallelPlan(2, (ReplicaPlan((stage(0, 8, 8),), 8),))
    spread = transfers(old, layout(joiner, DEMO_MODEL), alive=range(8))
    sent = Counter({r: sum(m.stop - m.start for m in spread.outgoing(r)) for r in range(8)})
    assert all(sent[r] > 0 for r in range(8)), "equal holders share the work"


def test_missing_names_what_nobody_alive_holds() -> None:
    old = layout(demo_plan(), DEMO_MODEL)
    found = transfers(old, old, alive={0, 1, 2, 4, 5, 6})  # 3 and 7 held the second halves of stage 1
    assert ("head.weight", 128, 256) in found.missing
    assert ("layers.7.w_down.weight", 176, 352) in found.missing
    assert not any(name.startswith(("layers.0.", "embed")) for name, _, _ in found.missing)
    assert not any("norm" in name for name, _, _ in found.missing), "copies survive on the other members"
