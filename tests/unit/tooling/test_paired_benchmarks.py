"""How paired measurements are put together, and that the scripts of benchmarks can happen."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.engine_recovery.losses import Loss
from benchmarks.loss_curve import WORKERS, job_of, script_of
from benchmarks.overhead.__main__ import Found, pairs_of
from benchmarks.overhead.worker import BLOCK, LEAD, SHIFT, is_whole, place
from benchmarks.simulate import SPEC, random_cases
from resihp_plan import Schedule
from resihp_trainer.trials import script


def test_blocks_of_both_kinds_alternate() -> None:
    kinds = [is_whole(k) for k in range(1, 4 * BLOCK - SHIFT + 1)]
    assert kinds == [True] * (BLOCK - SHIFT) + [False] * BLOCK + [True] * BLOCK + [False] * BLOCK
    assert all(not is_whole(k + BLOCK) for k in range(1, 200) if is_whole(k))
    # A snapshot that begins in a whole block (every 10 iterations) has five iterations left in it.
    assert min(BLOCK - 1 - place(k)[1] for k in range(10, 400, 10) if is_whole(k)) == SHIFT


def test_an_overhead_is_found_again() -> None:
    rng = Random(1)
    last = 20 * BLOCK - SHIFT
    seconds = [(k, (1.02 if is_whole(k) else 1.0) * rng.gauss(0.3, 0.003)) for k in range(1, last + 1)]
    seconds[10] = (11, 9.0)  # in the first block, which does not count
    pairs = pairs_of(seconds)
    assert len(pairs) == 9
    found = Found.of(pairs, Random(0))
    assert found.low < 0.02 < found.high
    assert found.overhead == pytest.approx(0.02, abs=0.004)
    assert LEAD < BLOCK


def test_recovery_arithmetic() -> None:
    loss = Loss(3, "vote", notice_s=0.01, plan_s=0.05, first_all_reduce_s=0.12, move_s=0.2, bytes_moved=10**8,
                total_s=1.0, iteration_s=0.7)  # fmt: skip
    assert loss.net_s == pytest.approx(0.3)
    assert loss.declared_s == pytest.approx(0.07)
    assert loss.bytes_per_s == pytest.approx(5e8)


def test_the_script_of_the_loss_curve_is_one_that_the_trials_can_run() -> None:
    made = script_of(500, 7)
    assert len(made.faults) == 10
    assert job_of(made).faults == made.faults
    alive = set(range(WORKERS))
    for event in made.events:
        if isinstance(event, script.Loss):
            alive -= set(event.victims)
        elif isinstance(event, script.Rejoin):
            alive |= set(event.ranks)
        assert len(alive) >= WORKERS - 1
    assert alive == set(range(WORKERS))


def test_simulated_cases_hold_what_the_benchmark_promises() -> None:
    cases = random_cases(20, Random(7))
    assert sum(bool(case.plan.migrations) for case in cases) >= 7
    assert {case.plan.schedule for case in cases} == set(Schedule)
    assert any(case.health for case in cases)
    assert any(len(set(stage.weights)) > 1 for case in cases for r in case.plan.replicas for stage in r.stages)
    assert {case.plan.num_micro_batches for case in cases} == {SPEC.batch.micro_batches}
