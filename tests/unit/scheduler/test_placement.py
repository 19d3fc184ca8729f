"""Ranks are dealt so that TP groups stay together and replicas stay apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from resihp_plan import Cluster, ModelSpec, ParallelPlan
from resihp_plan.planner import plan_initial
from resihp_scheduler.placement import place

MODEL = ModelSpec()


def plan(tp: int, pp: int, dp: int) -> ParallelPlan:
    return plan_initial(Cluster.of(tp * pp * dp), MODEL, tp, pp, dp, 8)


def test_replicas_on_different_nodes() -> None:
    dealt = place(plan(2, 2, 2), {"a": range(8), "b": range(8)})
    assert dealt is not None
    assert {dealt[r][0] for r in range(4)} == {"a"}
    assert {dealt[r][0] for r in range(4, 8)} == {"b"}


def test_groups_stay_together_when_replicas_do_not_fit() -> None:
    dealt = place(plan(2, 2, 2), {"a": range(3), "b": range(3), "c": range(2)})
    # 2 + 2 + 2 places for pairs, then the last pair must be split
    assert dealt is not None
    together = [dealt[r][0] == dealt[r + 1][0] for r in (0, 2, 4, 6)]
    assert together == [True, True, True, False]


def test_too_few() -> None:
    assert place(plan(2, 2, 2), {"a": range(4), "b": range(3)}) is None
    assert place(plan(1, 1, 1), {}) is None


@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.integers(1, 3),
    dp=st.integers(1, 3),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
)
def test_everybody_gets_one_free_slot(tp: int, pp: int, dp: int, sizes: list[int]) -> None:
    wanted = plan(tp, pp, dp)
    free = {f"n{i}": [10 + s for s in range(size)] for i, size in enumerate(sizes)}
    dealt = place(wanted, free)
    if sum(sizes) < tp * pp * dp:
        assert dealt is None
        return
    assert dealt is not None
    assert set(dealt) == set(wanted.world)
    assert len(set(dealt.values())) == len(dealt)
    assert all(slot in free[node] for node, slot in dealt.values())
    assert dealt == place(wanted, free)
