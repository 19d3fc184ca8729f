"""Initial plans, and plans after losses: valid or a typed refusal for every set of survivors."""

from __future__ import annotations

import functools
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import (
    Cluster,
    CostModel,
    Device,
    MemoryModel,
    ModelSpec,
    ParallelPlan,
    ReplicaPlan,
    Workload,
    check_program,
    layout,
    program,
    transfers,
    validate,
)
from resihp_plan.planner import Decision, Infeasible, InfeasibleKind, plan_after_loss, plan_initial, predict
from support.plans import DEMO_MODEL, demo_plan, models, plans, stage

CLUSTER = Cluster.of(8)
WORKLOAD = Workload.typical(8, 128)
COST = CostModel.for_model(DEMO_MODEL)
SUBSETS = [s for n in range(1, 9) for s in itertools.combinations(range(8), n)]


class _Ticks:
    """A clock that moves by one second per reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def _after(alive: object, plan: ParallelPlan | None = None, **options: object) -> Decision:
    return plan_after_loss(plan or demo_plan(), DEMO_MODEL, CLUSTER, alive, WORKLOAD, clock=_Ticks(), **options)  # type: ignore[arg-type]


@functools.cache
def _without_state(alive: tuple[int, ...]) -> Decision:
    """Several tests look at the same 255 decisions."""
    return _after(alive, require_state=False)


def _assert_sound(decision: Decision, model: ModelSpec, alive: set[int], num_micro_batches: int) -> None:
    plan = decision.plan
    validate(plan, model, alive=alive, num_micro_batches=num_micro_batches)
    assert set(plan.world) == alive, "everybody alive is in the world: at work or standing by"
    check_program(program(plan), plan)
    assert decision.predicted_step_s > 0
    assert all(x.predicted_step_s >= decision.predicted_step_s / 1.03 for x in decision.alternatives)


# --- initial --------------------------------------------------------------------------------------------------------


def test_initial_plan_of_the_demo() -> None:
    assert plan_initial(CLUSTER, DEMO_MODEL, 2, 2, 2, 8) == demo_plan()


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 4), st.integers(4, 20))
def test_initial_plans_are_valid_and_even(tp: int, pp: int, dp: int, num_micro_batches: int) -> None:
    cluster = Cluster.of(130, devices_per_node=8)
    plan = plan_initial(cluster, DEMO_MODEL, tp, pp, dp, num_micro_batches)
    validate(plan, DEMO_MODEL, alive=cluster.ranks, num_micro_batches=num_micro_batches)
    assert plan.active == tuple(range(tp * pp * dp))
    counts = [r.num_micro_batches for r in plan.replicas]
    assert max(counts) - min(counts) <= 1
    if tp in (1, 2, 4):
        nodes = [{cluster.node_of[r] for r in s.ranks} for rep in plan.replicas for s in rep.stages]
        assert all(len(n) == 1 for n in nodes), "a TP group stays on its node"


@pytest.mark.parametrize(
    ("degrees", "kind", "text"),
    [
        ((5, 1, 1, 8), InfeasibleKind.DEGREE, "tp = 5 must be 1 to num_kv_heads = 4"),
        ((1, 9, 1, 8), InfeasibleKind.DEGREE, "pp = 9 must be 1 to num_layers = 8"),
        ((1, 1, 9, 8), InfeasibleKind.DEGREE, "dp = 9 must be 1 to num_micro_batches = 8"),
        ((0, 1, 1, 8), InfeasibleKind.DEGREE, "tp = 0"),
        ((2, 2, 3, 8), InfeasibleKind.NO_DEVICES, "2\\*2\\*3 needs 12 devices, got 8"),
    ],
)
def test_impossible_degrees_are_named(degrees: tuple[int, int, int, int], kind: InfeasibleKind, text: str) -> None:
    with pytest.raises(Infeasible, match=text) as caught:
        plan_initial(CLUSTER, DEMO_MODEL, *degrees)
    assert caught.value.kind is kind


# --- after a loss: every survivor subset of 2 x 2 x 2 -----------------------------------------------------------------


def _recoverable(alive: set[int]) -> bool:
    """Every (stage, TP index) of 2 x 2 x 2 has a holder in one of the two replicas."""
    return all({r, r + 4} & alive for r in range(4))


@pytest.mark.parametrize("size", range(1, 9))
def test_every_survivor_subset_has_a_plan_without_state(size: int) -> None:
    held = layout(demo_plan(), DEMO_MODEL)
    for alive in itertools.combinations(range(8), size):
        decision = _without_state(alive)
        _assert_sound(decision, DEMO_MODEL, set(alive), 8)
        assert decision.plan.epoch == 2
        moved = transfers(held, layout(decision.plan, DEMO_MODEL), alive=alive)
        assert decision.bytes_moved == 3 * 4 * moved.num_elements(DEMO_MODEL), "what is lost does not move"
        assert decision.predicted_step_s == predict(decision.plan, WORKLOAD, COST).step_s


@pytest.mark.parametrize("size", range(1, 9))
def test_every_survivor_subset_has_a_plan_or_names_the_lost_state(size: int) -> None:
    for subset in itertools.combinations(range(8), size):
        alive = set(subset)
        if _recoverable(alive):
            decision = _after(alive)
            _assert_sound(decision, DEMO_MODEL, alive, 8)
            moved = transfers(layout(demo_plan(), DEMO_MODEL), layout(decision.plan, DEMO_MODEL), alive=alive)
            assert not moved.missing
            assert decision.bytes_moved == 3 * 4 * moved.num_elements(DEMO_MODEL)
        else:
            with pytest.raises(Infeasible) as caught:
                _after(alive)
            assert caught.value.kind is InfeasibleKind.NO_STATE_HOLDER
            assert (
                "layers 0-3" in caught.value.detail
                or "layers 4-7" in caught.value.detail
                or ("layers 0-7" in caught.value.detail)
            )


def test_nobody_left() -> None:
    for options in ({}, {"require_state": False}):
        with pytest.raises(Infeasible, match="none of the 8 devices is alive") as caught:
            _after([], **options)
        assert caught.value.kind is InfeasibleKind.NO_DEVICES
    with pytest.raises(Infeasible, match="none of the 8 devices"):
        _after([0, 1], health={0: 0.0, 1: 0.0}, require_state=False)


def test_lost_state_is_named() -> None:
    with pytest.raises(
        Infeasible, match=r"no_state_holder: state of layers 4-7, head is held by nobody alive \(lost ranks \[3, 7\]"
    ):
        _after([0, 1, 2, 4, 5, 6])
    with pytest.raises(Infeasible, match=r"layers 0-3, embedding"):
        _after([2, 3, 6, 7])


# --- what is chosen ---------------------------------------------------------------------------------------------------


def test_one_loss_shrinks_the_group_and_shifts_micro_batches() -> None:
    """The issue's example: TP 2 -> 1 in the hit stage, 5+3 instead of 4+4, the other replica untouched."""
    decision = _after([0, 1, 2, 3, 4, 5, 7])
    assert decision.difference == "R1.S1 TP 2 -> 1; micro-batches 4+4 -> 5+3"
    assert decision.name == "R1 shrink"
    assert decision.plan.replicas[0].stages == demo_plan().replicas[0].stages
    # 7 lacks half of 4 layers and of the head; it gets parameters and both moments in 4 bytes each
    missing = layout(demo_plan(), DEMO_MODEL).num_elements(6) - 9 * 128
    assert decision.bytes_moved == 12 * missing
    assert decision.predicted_tokens_per_s == pytest.approx(WORKLOAD.tokens / decision.predicted_step_s)


def test_rank_numbers_do_not_matter() -> None:
    """Each of the eight single losses costs the same as its mirror image."""
    speed = {dead: _after(set(range(8)) - {dead}).predicted_tokens_per_s for dead in range(8)}
    assert speed[0] == pytest.approx(speed[1]) == pytest.approx(speed[4]) == pytest.approx(speed[5])
    assert speed[2] == pytest.approx(speed[3]) == pytest.approx(speed[6]) == pytest.approx(speed[7])


def test_a_stage_without_devices_reforms_the_replica() -> None:
    decision = _after([0, 1, 4, 5, 6, 7])
    assert decision.plan.replicas[0].stages == (stage(0, 8, 0, 1),)
    names = {x.name for x in decision.alternatives}
    assert {"R0 re-form with 2 stages", "R0 drop", "R0 drop; others join"} <= names


def test_dropping_the_replica_or_moving_a_micro_batch_is_never_better() -> None:
    """The choice loses by at most its tolerance to any division of micro-batches, and to dropping the hit replica."""
    decision = _after([0, 1, 2, 4, 5, 6, 7])
    plan = decision.plan
    for m in range(9):
        split = ParallelPlan(2, (ReplicaPlan(plan.replicas[0].stages, m), ReplicaPlan(plan.replicas[1].stages, 8 - m)))
        assert predict(split, WORKLOAD, COST).step_s >= decision.predicted_step_s / 1.02
    dropped = ParallelPlan(2, (ReplicaPlan(plan.replicas[1].stages, 8),), standby=(0, 1, 2))
    assert predict(dropped, WORKLOAD, COST).step_s > decision.predicted_step_s


def test_more_devices_are_never_much_worse() -> None:
    """Throughput of the choice falls (within the tolerance) when one more device is lost."""
    speed = {s: _without_state(s).predicted_tokens_per_s for s in SUBSETS if len(s) >= 5}
    for survivors, tokens_per_s in speed.items():
        for dead in survivors:
            fewer = tuple(r for r in survivors if r != dead)
            if fewer in speed:
                assert speed[fewer] <= tokens_per_s * 1.021, (survivors, dead)


def test_few_bytes_win_among_equals() -> None:
    decision = _after([0, 1, 2, 4, 5, 6, 7])
    close = [x for x in decision.alternatives if x.predicted_step_s <= decision.predicted_step_s * 1.001]
    assert close, "there are alternatives that are as fast"
    assert all(x.bytes_moved is not None and x.bytes_moved > decision.bytes_moved for x in close)
    assert all("moves" in x.why_lost for x in close)
    slow = [x for x in decision.alternatives if x.predicted_step_s > decision.predicted_step_s * 1.05]
    assert slow
    assert all("more time per step" in x.why_lost for x in slow)


def test_bound_is_healthy_throughput_times_what_is_left() -> None:
    healthy = predict(demo_plan(), WORKLOAD, COST).tokens_per_s
    first = _after([0, 1, 2, 4, 5, 6, 7])
    assert first.bound_tokens_per_s == pytest.approx(healthy * 7 / 8)
    second = _after([0, 1, 2, 4, 5, 7], plan=first.plan, reference=demo_plan())
    assert second.bound_tokens_per_s == pytest.approx(healthy * 6 / 8)
    assert second.plan.epoch == 3


def test_slow_devices_get_smaller_shares_or_stand_by() -> None:
    """Four head groups: at p = 0.4 a share of one of them does not pay, at p = 0.7 the grain allows it with weights."""
    mild = _after([0, 1, 2, 3, 4, 5, 6], health={0: 0.7})
    group = next(s for r in mild.plan.replicas for s in r.stages if 0 in s.ranks)
    assert group.weights[group.ranks.index(0)] == (70 if len(group.ranks) > 1 else 1)
    severe = _after([0, 1, 2, 3, 4, 5, 6], health={0: 0.1})
    assert severe.plan.standby == (0,)
    healthy = _after([0, 1, 2, 3, 4, 5, 6])
    assert severe.predicted_tokens_per_s < healthy.predicted_tokens_per_s
    assert mild.predicted_tokens_per_s < healthy.predicted_tokens_per_s


def test_standby_devices_come_back_to_work() -> None:
    """A device that stood by fills the gap of a dead one."""
    spare = ParallelPlan(
        4,
        (ReplicaPlan(demo_plan().replicas[0].stages, 4), ReplicaPlan((stage(0, 4, 4, 5), stage(4, 8, 6)), 4)),
        standby=(7,),
    )
    decision = _after([0, 1, 2, 3, 4, 5, 7], plan=spare, state_plan=demo_plan())
    assert 7 in decision.plan.active


def test_state_may_be_held_in_an_older_layout() -> None:
    """The first change never finished: state still lies as in the first plan, so its holders decide."""
    first = _after([0, 1, 4, 5, 6, 7])  # R0 lost its second stage
    with pytest.raises(Infeasible, match="layers 4-7"):
        _after([0, 1, 4, 5], plan=first.plan, state_plan=demo_plan())
    assert _after([0, 1, 4, 5], plan=first.plan).plan.active == (0, 1, 4, 5)


def test_decision_is_deterministic_and_on_record() -> None:
    one, other = _after([1, 2, 3, 4, 6]), _after([6, 4, 3, 2, 1])
    assert one == other
    record = json.loads(json.dumps(one.to_dict()))
    assert ParallelPlan.from_dict(record["plan"]) == one.plan
    assert record["alternatives"][0]["why_lost"]
    assert one.planning_s == 1.0, "two readings of the clock"
    assert "lost ranks 0, 5, 7" in one.reason


def test_unknown_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ranks \[9\] are alive but not in the cluster"):
        _after([0, 9])


def test_nothing_lost_keeps_the_plan() -> None:
    decision = _after(range(8))
    assert decision.plan == demo_plan(2)
    assert decision.name == "keep"
    assert decision.bytes_moved == 0


# --- nodes ---------------------------------------------------------------------------------------------------------


def _nodes_of_groups(devices_per_node: int, alive: tuple[int, ...]) -> list[int]:
    cluster = Cluster.of(8, devices_per_node=devices_per_node)
    decision = plan_after_loss(demo_plan(), DEMO_MODEL, cluster, alive, WORKLOAD, clock=_Ticks(), require_state=False)
    _assert_sound(decision, DEMO_MODEL, set(alive), 8)
    return [len({cluster.node_of[r] for r in s.ranks}) for rep in decision.plan.replicas for s in rep.stages]


def test_groups_stay_on_their_node() -> None:
    """With two nodes of four, groups never span them; with nodes of one device, they did from the start."""
    for alive in SUBSETS[100:180:4]:
        assert set(_nodes_of_groups(4, alive)) == {1}
    assert max(_nodes_of_groups(1, (0, 1, 2, 4, 5, 6, 7))) == 2


# --- memory ---------------------------------------------------------------------------------------------------------


def _limited(limit: int) -> Cluster:
    return Cluster(tuple(Device(r, "n0", limit) for r in range(8)))


def test_memory_decides_between_candidates_and_refuses_by_name() -> None:
    free = _after([0, 1, 4, 5, 6, 7])
    memory = MemoryModel(DEMO_MODEL, 128, {})
    held = layout(free.plan, DEMO_MODEL)
    needed = max(memory.rank_bytes(held, r) for r in free.plan.active)
    tight = plan_after_loss(demo_plan(), DEMO_MODEL, _limited(needed - 1), [0, 1, 4, 5, 6, 7], WORKLOAD, clock=_Ticks())
    assert tight.plan != free.plan
    validate(tight.plan, DEMO_MODEL, memory=MemoryModel(DEMO_MODEL, 128, dict.fromkeys(range(8), needed - 1)))
    with pytest.raises(Infeasible, match=r"candidates do not fit; .*needs \d+ bytes and has 100000") as caught:
        plan_after_loss(demo_plan(), DEMO_MODEL, _limited(100_000), [0, 1, 4, 5, 6, 7], WORKLOAD, clock=_Ticks())
    assert caught.value.kind is InfeasibleKind.MEMORY


# --- random clusters ------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(st.data())
def test_random_plans_survive_random_losses_one_after_the_other(data: st.DataObject) -> None:
    model = data.draw(models())
    plan = data.draw(plans(model))
    cluster = Cluster(tuple(Device(r, f"n{r % 3}") for r in plan.world))
    workload = Workload.typical(plan.num_micro_batches, 32)
    alive = set(plan.world)
    while alive:
        alive -= set(data.draw(st.lists(st.sampled_from(sorted(alive)), min_size=1, max_size=3)))
        if not alive:
            break
        health = {r: data.draw(st.sampled_from([1.0, 1.0, 0.5, 0.9])) for r in sorted(alive)}
        decision = plan_after_loss(
            plan, model, cluster, alive, workload, clock=_Ticks(), health=health, require_state=False
        )
        _assert_sound(decision, model, alive, plan.num_micro_batches)
        assert decision.plan.epoch == plan.epoch + 1
        plan = decision.plan


def test_a_larger_job() -> None:
    """TP 4 x PP 4 x DP 4 on 8 nodes: two devices and then a whole node are lost."""
    model = ModelSpec(num_layers=16, hidden=256, num_heads=16, num_kv_heads=8, ffn_hidden=704, vocab_size=512)
    cluster = Cluster.of(64, devices_per_node=8)
    workload = Workload.typical(64, 512)
    cost = CostModel.for_model(model)
    healthy = plan_initial(cluster, model, 4, 4, 4, 64)
    alive = set(range(64)) - {5, 37}
    first = plan_after_loss(healthy, model, cluster, alive, workload, clock=_Ticks(), cost=cost)
    _assert_sound(first, model, alive, 64)
    assert first.predicted_tokens_per_s > 0.9 * first.bound_tokens_per_s
    alive -= set(range(16, 24))
    second = plan_after_loss(first.plan, model, cluster, alive, workload, clock=_Ticks(), cost=cost, reference=healthy)
    _assert_sound(second, model, alive, 64)
    assert second.predicted_tokens_per_s > 0.85 * second.bound_tokens_per_s
