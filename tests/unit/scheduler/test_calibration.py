"""Constants that are measured on iterations whose truth is known: made by the simulator with other constants."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from resihp_messages import JobSpec
from resihp_plan import CostModel, MicroBatchWork, ModelSpec, ParallelPlan, program, simulate
from resihp_scheduler.calibration import (
    Calibration,
    calibrate,
    calibrated_cost,
    describes_devices,
    nominal_cost,
    speeds_in,
    workload_of,
)
from resihp_scheduler.meter import Measured, RankSeconds
from resihp_scheduler.planning import JobPlanning

SPEC = JobSpec.model_validate({"clock": {"virtual": True, "flops_per_s": 1e9}})
MODEL = ModelSpec(**SPEC.model.model_dump())
PLAN = JobPlanning(SPEC).initial()
LATENCY_S, OVERHEAD_S = 2e-3, 0.04


def host_cost(scale: float = 1.0, ratio: float = 2.0) -> CostModel:
    cost = nominal_cost(SPEC, MODEL)
    return replace(
        cost,
        attention_s=cost.attention_s * scale,
        mlp_s=cost.mlp_s * scale,
        square_s=cost.square_s * scale,
        head_s=cost.head_s * scale,
        backward_ratio=ratio,
        collective_latency_s=LATENCY_S,
        transfer_latency_s=LATENCY_S,
    )


def iterations(
    plan: ParallelPlan, cost: CostModel, count: int = 12, health: dict[int, float] | None = None, seed: int = 1
) -> list[Measured]:
    """What a host with these constants would report."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        work = tuple(
            tuple(MicroBatchWork(rng.randint(118, 128), rng.randint(2000, 16000)) for _ in range(r.num_micro_batches))
            for r in plan.replicas
        )
        step_s = simulate(plan, program(plan), work, cost, health=health).makespan_s + OVERHEAD_S
        row = Measured(plan.epoch, step_s)
        for a, replica in enumerate(plan.replicas):
            for s, stage in enumerate(replica.stages):
                costs = cost.stage_cost(stage, last=s == len(replica.stages) - 1, health=health)
                waits = 2 * sum(costs.collectives.seconds(w) for w in work[a])
                for t, rank in enumerate(stage.ranks):
                    forward_s = sum(costs.member_s(t, w, backward=False) for w in work[a])
                    row.ranks[rank] = RankSeconds(
                        forward_s,
                        forward_s * cost.backward_ratio,
                        waits,
                        num_units=len(work[a]),
                        tokens=sum(w.tokens for w in work[a]),
                        sum_sq_len=sum(w.sum_sq_len for w in work[a]),
                    )
        found.append(row)
    return found


def measured(**changes: float) -> Calibration:
    found = calibrate(SPEC, PLAN, iterations(PLAN, host_cost(**changes)))
    assert found is not None
    return found


@pytest.mark.parametrize(("scale", "ratio"), [(1.0, 2.0), (1.7, 1.8)])
def test_constants_are_found(scale: float, ratio: float) -> None:
    found = measured(scale=scale, ratio=ratio)
    assert found.compute_scale == pytest.approx(scale, rel=1e-9)
    assert found.backward_ratio == pytest.approx(ratio, rel=1e-9)
    assert found.latency_s == pytest.approx(LATENCY_S, rel=0.02)
    assert found.overhead_s == pytest.approx(OVERHEAD_S, abs=0.05)  # plus the imbalance of uneven micro-batches
    assert Calibration.from_dict(found.to_dict()) == found
    cost = calibrated_cost(SPEC, MODEL, found)
    assert cost.mlp_s == pytest.approx(host_cost(scale=scale).mlp_s)


def test_another_plan_is_predicted_by_them() -> None:
    """Within 2 % of the median that a job with other documents would measure."""
    found = measured()
    planning = JobPlanning(SPEC, found)
    other = replace(
        PLAN,
        replicas=(
            replace(PLAN.replicas[0], num_micro_batches=5),
            replace(PLAN.replicas[1], num_micro_batches=3),
        ),
    )
    health = {5: 0.5}
    steps = sorted(m.step_s for m in iterations(other, host_cost(), 31, health, seed=2))
    tokens = workload_of(SPEC, found).tokens
    assert planning.tokens_per_s(other, health) == pytest.approx(tokens / steps[15], rel=0.02)


def test_crowded_cores_are_not_devices() -> None:
    """On the real clock a plan that leaves workers idle would look (and be) faster: the demo's seven survivors work."""
    assert describes_devices(SPEC)
    assert not describes_devices(JobSpec())
    assert describes_devices(JobSpec(backend="nccl"))


def test_too_little_is_no_measurement() -> None:
    assert calibrate(SPEC, PLAN, iterations(PLAN, host_cost(), 4)) is None


def test_speeds_are_read_off_stage_times() -> None:
    rows = iterations(PLAN, host_cost(), 6, {5: 0.47, 2: 0.9})
    found = speeds_in(SPEC, PLAN, rows, measured())
    assert found == pytest.approx({r: {5: 0.47, 2: 0.9}.get(r, 1.0) for r in range(8)}, rel=1e-6)
