"""Assembly of reports, links, iteration times."""

from __future__ import annotations

import math

import msgpack
import numpy as np
import pytest

from resihp_detect import Assembly, IterationLevel, LinkLevel, Record, Roster, ScheduleTime, Verdict, VerdictKind
from resihp_plan import (
    CostModel,
    MicroBatchWork,
    ModelSpec,
    ParallelPlan,
    ReplicaPlan,
    StagePlan,
    Work,
    program,
    simulate,
)

ROSTER = Roster.of({"s": ["a", "b", "c"], "t": ["d"]})


def record(iteration: int, device: str, seconds: float = 1.0) -> Record:
    return Record(iteration, device, (seconds,))


def test_an_iteration_closes_when_everybody_has_reported_in_whatever_order() -> None:
    assembly = Assembly(ROSTER)
    assert [assembly.add(record(1, d)) for d in "cda"] == [()] * 3
    (frame,) = assembly.add(record(1, "b", 2.5))
    assert (frame.iteration, frame.num_missing) == (1, 0)
    assert frame.seconds[0, :, 0].tolist() == [1.0, 2.5, 1.0]
    assert math.isnan(frame.seconds[1, 1, 0])  # group t has one device


def test_a_missing_report_delays_by_the_grace_only() -> None:
    assembly = Assembly(ROSTER, grace=2)
    closed = [f for i in range(1, 6) for d in ("a", "b", "d") for f in assembly.add(record(i, d))]
    assert [f.iteration for f in closed] == [1, 2, 3]
    assert all(f.num_missing == 1 for f in closed)
    assert [f.iteration for f in assembly.flush()] == [4, 5]


def test_repeated_late_unknown_and_far_future_records_change_nothing() -> None:
    assembly = Assembly(ROSTER)
    assembly.add(record(10**12, "a"))  # a broken counter closes nothing
    frames = [f for _ in range(2) for i in range(1, 4) for d in "abcd" for f in assembly.add(record(i, d))]
    assert [f.iteration for f in frames] == [1, 2, 3]
    assert assembly.num_late == 12
    assembly.add(record(4, "a"))
    assembly.add(record(4, "a", 9.0))
    assembly.add(record(4, "z"))
    assert (assembly.num_repeated, assembly.num_unknown) == (1, 1)
    other = Assembly(ROSTER)
    other.restore(msgpack.unpackb(msgpack.packb(assembly.snapshot())))
    for d in "bcd":
        left, right = assembly.add(record(4, d)), other.add(record(4, d))
    assert [f.iteration for f in left] == [f.iteration for f in right] == [4]
    assert left[0].seconds[0, 0, 0] == right[0].seconds[0, 0, 0] == 1.0


def waits(rng: np.random.Generator, transfer_s: float) -> np.ndarray:
    """Two members; one of them, by turns, arrives late by up to 20 transfers and so waits for the transfer alone."""
    late = rng.uniform(0, 20 * transfer_s)
    pair = np.array([transfer_s, transfer_s + late]) * np.exp(rng.normal(0, 0.03, 2))
    return pair[rng.permutation(2)]


@pytest.mark.parametrize("seed", range(3))
def test_the_slow_edge_is_named_although_late_peers_wait_far_longer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f"e{i}" for i in range(12)]
    links = LinkLevel({"pp": names})
    found: list[Verdict] = []
    for i in range(1, 121):
        size = rng.uniform(0.5e6, 2e6, (1, 12))
        times = 1e-3 + size[0] * 1e-8
        times[7] *= 2.0 if 60 <= i < 90 else 1.0
        found += links.observe(i, np.stack([waits(rng, t) for t in times])[None], size)
    assert [(v.kind, v.device) for v in found] == [(VerdictKind.LINK_SLOW, "e7"), (VerdictKind.LINK_RECOVERED, "e7")]
    assert found[0].p == pytest.approx(0.5, rel=0.1)
    assert found[0].iteration <= 65


STAGES = tuple(StagePlan(s, s + 1, (s,), (1,)) for s in range(2))
PLAN = ParallelPlan(epoch=1, replicas=(ReplicaPlan(STAGES, num_micro_batches=4),))
MODEL = ModelSpec(num_layers=2)


def works(rng: np.random.Generator, count: int) -> list[Work]:
    return [(tuple(MicroBatchWork(4096, int(rng.uniform(5e5, 8e6))) for _ in range(4)),) for _ in range(count)]


def test_iteration_time_of_a_schedule_is_learned_and_a_slow_job_is_told_from_long_documents() -> None:
    rng = np.random.default_rng(4)
    truth = CostModel.for_model(MODEL, flops_per_s=1e11)
    truth = CostModel(**{**truth.__dict__, "square_s": 3.0 * truth.square_s})
    order = program(PLAN)
    many = works(rng, 90)
    times = [simulate(PLAN, order, w, truth).makespan_s * math.exp(rng.normal(0, 0.01)) for w in many]
    assert np.std(np.log(times)) > 0.08  # lengths alone move iterations by far more than the gate
    schedule = ScheduleTime(PLAN, CostModel.for_model(MODEL))
    assert schedule.learn(many[:20], times[:20]) < 0.028
    level, found = IterationLevel(), []
    for i, (work, seconds) in enumerate(zip(many, times, strict=True), 1):
        found += level.observe(i, seconds * (1.25 if i >= 70 else 1.0), schedule.seconds(work))
        if i == 50:
            state = msgpack.packb(level.snapshot())
    (verdict,) = found
    assert (verdict.kind, verdict.first_iteration) == (VerdictKind.JOB_SLOW, 70)
    assert verdict.iteration <= 74
    assert verdict.p == pytest.approx(0.8, rel=0.05)
    again = IterationLevel()
    again.restore(msgpack.unpackb(state))
    repeated = [
        v
        for i in range(51, 91)
        for v in again.observe(i, times[i - 1] * (1.25 if i >= 70 else 1.0), schedule.seconds(many[i - 1]))
    ]
    assert repeated == found
    with pytest.raises(ValueError, match="at least 3 pairs"):
        schedule.learn(many[:2], times[:2])


def test_a_small_change_stays_below_the_adaptive_gate() -> None:
    rng = np.random.default_rng(5)
    level, found = IterationLevel(), []
    for i in range(1, 300):
        found += level.observe(i, 1.0 * rng.normal(1, 0.06) * (1.08 if i > 100 else 1.0), 1.0)
        found += level.observe(i, math.nan, 1.0)
    assert found == []
    assert level.gate > 0.09
