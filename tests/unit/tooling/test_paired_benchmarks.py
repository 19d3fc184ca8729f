"""How paired measurements are put together, and that the scripts of benchmarks can happen."""

from __future__ import annotations

import time
from random import Random

import pytest

from benchmarks.engine_recovery.losses import Loss
from benchmarks.loss_curve import WORKERS, job_of, script_of
from benchmarks.overhead.found import Found, Row, Run
from benchmarks.overhead.ingredients import BARE, WHOLE, Ledger, Part
from benchmarks.overhead.worker import BLOCK, LEAD, SHIFT, place, variants
from benchmarks.simulate import SPEC, random_cases
from resihp_plan import Schedule
from resihp_trainer.trials import script


def test_every_block_has_bare_ones_around_it_and_what_is_due_in_its_middle() -> None:
    for alone in (False, True):
        kinds = variants(alone)
        assert {BARE, WHOLE} <= set(kinds)
        assert all((kinds[n] == BARE) == (n % 2 == 1) for n in range(len(kinds)))
    assert {variant.parts for variant in variants(True)} == {BARE.parts, WHOLE.parts, *(frozenset({p}) for p in Part)}
    due = [place(k) for k in range(BLOCK, 50 * BLOCK, BLOCK)]  # snapshots and fingerprints
    assert [block for block, _ in due] == list(range(due[0][0], due[0][0] + len(due)))
    assert {at for _, at in due} == {SHIFT - 1}
    assert LEAD < SHIFT - 1 < BLOCK - 2


def test_an_overhead_is_found_again_in_spite_of_a_drift() -> None:
    rng, kinds = Random(1), variants(False)
    last = 22 * BLOCK - SHIFT
    ranks: list[list[Row]] = [[], []]
    for k in range(1, last + 1):
        whole = kinds[place(k)[0] % len(kinds)] == WHOLE
        seconds = (1.02 if whole else 1.0) * (1 + k / last) * rng.gauss(0.3, 0.003)
        for rows in ranks:
            rows.append((k, seconds, seconds / 2, seconds / 4, {Part.VOTE: 0.001} if whole else {}))
    ranks[0][4] = (5, 9.0, 9.0, 9.0, {})  # in the first block, which is not whole
    run = Run(ranks, kinds)
    for column in (1, 2):
        found = Found.of(run.pairs(WHOLE, column), Random(0))
        assert found.low < 0.02 < found.high
        assert found.overhead == pytest.approx(0.02, abs=0.004)
    assert run.ledger()[Part.VOTE] == pytest.approx(0.002)
    assert run.ledger()[Part.REPORT] == 0.0


def test_a_ledger_counts_what_is_inside_another_once() -> None:
    ledger = Ledger()
    inner = ledger.charged(Part.FINGERPRINTS, lambda: sum(range(50_000)))
    outer = ledger.charged(Part.REPORT, lambda: (inner(), inner()))
    start = time.thread_time()
    outer()
    whole_s = time.thread_time() - start
    spent = ledger.take()
    assert set(spent) == {Part.REPORT, Part.FINGERPRINTS}
    assert sum(spent.values()) <= whole_s
    assert min(spent.values()) >= 0.0
    assert ledger.take() == {}


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
