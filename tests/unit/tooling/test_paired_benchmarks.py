"""How paired measurements are put together, and that the scripts of benchmarks can happen."""

from __future__ import annotations

import time
from random import Random

import pytest

from benchmarks.engine_recovery.losses import Loss
from benchmarks.loss_curve import WORKERS, job_of, script_of
from benchmarks.overhead.found import DEFAULT, Found, Row, Run
from benchmarks.overhead.ingredients import ENTRIES, Ledger, Part, Variant
from benchmarks.overhead.worker import BLOCK, EVERY, LEAD, SHIFT, is_audited, place, variant_of
from benchmarks.simulate import SPEC, random_cases
from resihp_plan import Schedule
from resihp_trainer.trials import script


def test_rounds_are_due_and_over_in_blocks_with_everything_on() -> None:
    for due in range(EVERY, 20 * EVERY, EVERY):
        block, at = place(due)
        assert variant_of(block) is Variant.WHOLE
        assert LEAD <= at < BLOCK - 2
    assert {variant_of(b) for b in (1, 3)} == {Variant.BARE}
    rounds = [place(k)[0] for k in range(EVERY, 17 * EVERY, EVERY)]
    assert sum(map(is_audited, rounds)) == len(rounds) / 2 == sum(map(is_audited, range(2, 34, 2)))


def test_an_overhead_is_found_again_in_spite_of_a_drift() -> None:
    """2 % of every iteration with everything on, and 60 ms of each of both ranks in a round."""
    rng = Random(1)
    last = 81 * BLOCK - SHIFT
    ranks: list[list[Row]] = [[], []]
    for k in range(1, last + 1):
        whole = variant_of(place(k)[0]) is Variant.WHOLE
        seconds = (1.02 if whole else 1.0) * (1 + k / last) * rng.gauss(0.3, 0.003)
        seconds += 0.06 if k % EVERY == 0 else 0.0
        spent: dict[str, float] = {Part.VOTE: 0.0016, Part.SNAPSHOTS: 0.05 if k % EVERY == 0 else 0.0}
        spent[Part.VOTE + ENTRIES] = 3.0
        clocks: dict[str, float] = {Part.CLOCKS: 0.001, Part.CLOCKS + ENTRIES: 5.0}
        for rows in ranks:
            rows.append((k, seconds, seconds / 2, seconds / 4, spent if whole else clocks))
    ranks[0][4] = (5, 9.0, 9.0, 9.0, {})  # in the first block, which is not whole
    run = Run(ranks)
    for column in (1, 2):
        found = Found.of(run.pairs(column, rounds=False), Random(0))
        assert found.low < found.overhead < found.high
        assert found.overhead == pytest.approx(0.02, abs=0.004)
        assert run.by_blocks(column).round == pytest.approx(0.06, abs=0.02)
    assert run.ledger()[Part.VOTE].steady == pytest.approx(0.002)
    assert run.ledger()[Part.VOTE].round == pytest.approx(0.0, abs=1e-9)
    assert run.ledger()[Part.SNAPSHOTS].round == pytest.approx(0.1)
    assert run.clocks_s() == pytest.approx(0.0002)
    assert run.apart >= DEFAULT.apart_s / 0.6  # iterations grow from 0.3 to 0.6 s
    assert run.apart % DEFAULT.every == 0
    assert run.each(Part.SNAPSHOTS, run.ledger()[Part.SNAPSHOTS]) == pytest.approx(0.1 / run.apart)
    assert run.ledger()[Part.REPORT].steady == 0.0


def test_a_ledger_counts_what_is_inside_another_once() -> None:
    ledger = Ledger()
    inner = ledger.charged(Part.FINGERPRINTS, lambda: sum(range(50_000)))
    outer = ledger.charged(Part.REPORT, lambda: (inner(), inner()))
    start = time.thread_time()
    outer()
    whole_s = time.thread_time() - start
    spent = ledger.take()
    assert spent.pop(Part.REPORT + ENTRIES) == 1.0
    assert spent.pop(Part.FINGERPRINTS + ENTRIES) == 2.0
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
