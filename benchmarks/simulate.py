"""Does `simulate` predict the iteration time? Random plans on the virtual clock, predicted against measured.

    python -m benchmarks.simulate --plans 20 --seed 7
    python -m benchmarks.simulate --plans 20 --seed 7 --kept parts.json    # goes on where an earlier call was cut off

One job on the virtual clock is switched through random plans: uneven tensor parallelism, uneven stages, migrated
units, slow devices, both schedules. Real workers, driven directly (no bus, no services), so that the two cores are
theirs. What a collective of two members costs on this host, and how that grows with the members (processes on few
cores), is calibrated on three regular plans with groups of two, four and eight, before and after those that count.
Each prediction is for the very documents of a measured iteration.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.report import machine, table, write
from resihp_messages import JobSpec
from resihp_messages.link import IterationCommitted, SetSpeed
from resihp_plan import CostModel, ParallelPlan, ReplicaPlan, StagePlan, describe_plan, program, simulate, slice_batch
from resihp_plan.random_plan import random_plan
from resihp_trainer.data import documents
from resihp_trainer.reference import corpus_of, model_of
from resihp_trainer.trials.trainer_job import TrainerJob
from resihp_trainer.trials.zygote_client import ZygoteClient

ITERATIONS_PER_PLAN = 2
"""Measured ones, after the first of the plan, which contains the change. What else runs on the machine can only make
them longer, so the one that counts is the shortest against its prediction."""
PLAN_LIMIT_S = 120.0
SPEEDS = (0.4, 0.6, 0.8)
SPEC = JobSpec.model_validate(
    {"name": "simulate", "iterations": 100_000, "seed": 7, "clock": {"virtual": True, "flops_per_s": 5e8}}
)
"""The demo's job on devices so slow that two cores are mostly idle, with slices of an eighth too. (At 1e9 FLOP/s groups
of eight were 11 and 23 % off: their members waited for each other's core, which the clock then does not hide.)"""
MODEL = model_of(SPEC)
REGULAR = ParallelPlan(
    0,
    tuple(
        ReplicaPlan((StagePlan(0, 4, (a, a + 1), (1, 1)), StagePlan(4, 8, (a + 2, a + 3), (1, 1))), 4) for a in (0, 4)
    ),
)


def _wide(degree: int) -> ParallelPlan:
    """Even groups of so many, without pipelines."""
    stages = (StagePlan(0, 8, tuple(range(a, a + degree)), (1,) * degree) for a in range(0, 8, degree))
    return ParallelPlan(0, tuple(ReplicaPlan((stage,), degree) for stage in stages))


CALIBRATION = {0: REGULAR, -1: _wide(4), -2: _wide(8)}
"""Their numbers; the plans that count are numbered from 1."""
AGAIN = {number - len(CALIBRATION): plan for number, plan in CALIBRATION.items()}
"""Measured a second time after all others: the least disturbed iteration of both times counts."""


@dataclass(frozen=True)
class Case:
    """A plan on devices of these speeds (1 where missing)."""

    plan: ParallelPlan
    health: Mapping[int, float]


@dataclass(frozen=True)
class Compared:
    """The least disturbed iteration of a case."""

    case: Case
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1.0


def random_cases(count: int, rng: Random) -> list[Case]:
    """Plans over the job's eight devices, of which up to two are slow; every third one migrates units."""
    found: list[Case] = []
    for number in range(count):
        slow = {rank: rng.choice(SPEEDS) for rank in rng.sample(range(8), rng.choice((0, 1, 2)))}
        plan = random_plan(
            rng,
            MODEL,
            range(8),
            SPEC.batch.micro_batches,
            may_stand_by=False,
            accept=lambda p, needed=number % 3 == 0: bool(p.migrations) or not needed,  # type: ignore[misc]
        )
        found.append(Case(plan, slow))
    return found


def cost_of(latency_s: float, growth: float) -> CostModel:
    return replace(
        CostModel.for_model(
            MODEL,
            flops_per_s=SPEC.clock.flops_per_s,
            collective_latency_s=latency_s,
            transfer_latency_s=latency_s,
        ),
        latency_growth=growth,
    )


def solve(is_below: Callable[[float], bool], high: float) -> float:
    """The largest x in [0, high] that `is_below`, by bisection."""
    low = 0.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low


class Predicted:
    """Predicted seconds of single iterations; the batches are a function of the seed."""

    def __init__(self) -> None:
        self._corpus = corpus_of(SPEC)

    def seconds(self, case: Case, iteration: int, cost: CostModel) -> float:
        batch = documents(self._corpus, SPEC.batch, SPEC.seed, iteration)
        tokens = SPEC.batch.tokens_per_micro_batch
        work = slice_batch(batch.documents, case.plan, MODEL, tokens_per_micro_batch=tokens).work
        return simulate(case.plan, program(case.plan), work, cost, health=case.health).makespan_s

    def calibrate(self, measured: Mapping[int, Mapping[int, float]]) -> CostModel:
        """Latency of a collective of two, so that the regular plan takes as long as it did, and its growth with the
        members, so that the ratios of predicted to measured of the wide plans are 1 on (geometric) average."""
        latency_s, growth = 0.0, 1.0

        def ratio(number: int, cost: CostModel) -> float:
            times = (measured.get(n, {}) for n in (number, number - len(CALIBRATION)))
            found = [self.compared(Case(CALIBRATION[number], {}), seconds, cost) for seconds in times if seconds]
            return 1.0 + max(c.error for c in found)

        def error(cost: CostModel, *numbers: int) -> float:
            return sum(math.log(ratio(n, cost)) for n in numbers)

        for _ in range(3):
            latency_s = solve(lambda x: error(cost_of(x, growth), 0) < 0.0, 0.1)  # noqa: B023  (called at once)
            growth = solve(lambda x: error(cost_of(latency_s, x), -1, -2) < 0.0, 4.0)  # noqa: B023
        return cost_of(latency_s, growth)

    def compared(self, case: Case, measured: Mapping[int, float], cost: CostModel) -> Compared:
        """`measured`: iteration -> seconds."""
        each = (Compared(case, s, self.seconds(case, k, cost)) for k, s in measured.items())
        return max(each, key=lambda c: c.error)


def measure(cases: Mapping[int, Case], note: Callable[[int, Mapping[int, float]], None]) -> None:
    """Tell `note` of every case by its number: iteration -> seconds, of the iterations after the change to it."""
    with tempfile.TemporaryDirectory(prefix="resihp-simulate-") as folder:
        zygote = ZygoteClient(Path(folder), environment={"OMP_NUM_THREADS": "1"})
        job: TrainerJob | None = None
        try:
            job = TrainerJob(zygote, zygote.store()[1], SPEC, range(8))
            _measure(job, cases, note)
        finally:
            if job is not None:
                job.close()
            zygote.close()


def _measure(job: TrainerJob, cases: Mapping[int, Case], note: Callable[[int, Mapping[int, float]], None]) -> None:
    """The next plan is sent when the first iteration of a plan, which does not count, is over: ranks look for it when
    they begin one, so it takes two more to get there."""
    plans = [case.plan.with_epoch(epoch) for epoch, case in enumerate(cases.values(), start=1)]
    job.install(plans[0], "initial")
    for (number, case), plan, following in zip(cases.items(), plans, [*plans[1:], None], strict=True):
        job.wait(lambda: job.is_installed(plan), f"epoch {plan.epoch}", PLAN_LIMIT_S)  # noqa: B023  (called at once)
        for rank in range(8):
            job.send([rank], SetSpeed(factor=case.health.get(rank, 1.0)))
        job.wait(lambda: _is_begun(job, plan.epoch), f"an iteration of epoch {plan.epoch}", PLAN_LIMIT_S)  # noqa: B023
        if following is not None:
            job.install(following, "planned")
            job.wait(lambda: job.is_installed(following), f"epoch {following.epoch}", PLAN_LIMIT_S)  # noqa: B023
        else:
            enough = lambda: len(_whole(job, plan.epoch)) >= ITERATIONS_PER_PLAN  # noqa: B023, E731
            job.wait(enough, f"{ITERATIONS_PER_PLAN} iterations of epoch {plan.epoch}", PLAN_LIMIT_S)
        seconds = _whole(job, plan.epoch)
        for frames in job.frames.values():
            frames[:] = [f for f in frames if getattr(f, "epoch", 0) > plan.epoch]
        shown = ", ".join(f"{s:.3f}" for s in seconds.values())
        print(f"{number}: {describe_plan(case.plan)}: {shown} s", flush=True)
        note(number, seconds)


def _is_begun(job: TrainerJob, epoch: int) -> bool:
    """Whether all ranks have reported its first iteration."""
    return sum(f.first_of_epoch for _, f in job.all(IterationCommitted, epoch)) == 8


def _whole(job: TrainerJob, epoch: int) -> dict[int, float]:
    """Iterations of an epoch that all ranks have reported, without the first: their longest seconds."""
    steps: dict[int, list[float]] = {}
    for _, f in job.all(IterationCommitted, epoch):
        if not f.first_of_epoch:
            steps.setdefault(f.iteration, []).append(f.step_s)
    return {k: max(s) for k, s in sorted(steps.items()) if len(s) == 8}


def compare(cases: Mapping[int, Case], measured: Mapping[int, Mapping[int, float]]) -> tuple[CostModel, list[Compared]]:
    """The calibrated cost model, and every case that counts."""
    predicted = Predicted()
    cost = predicted.calibrate(measured)
    return cost, [predicted.compared(case, measured[n], cost) for n, case in cases.items() if n > 0]


def render(cost: CostModel, found: Sequence[Compared]) -> str:
    """Markdown."""
    errors = [abs(c.error) for c in found]
    rows = [
        (
            describe_plan(c.case.plan).partition(": ")[2] + f"; {len(c.case.plan.migrations)} migrated",
            str(c.case.plan.schedule),
            ", ".join(f"{r}: {p}" for r, p in sorted(c.case.health.items())) or "-",
            f"{c.measured_s:.3f}",
            f"{c.predicted_s:.3f}",
            f"{c.error:+.1%}",
        )
        for c in found
    ]
    summary = (
        f"Virtual clock. Absolute error over all {len(found)} plans: median {median(errors):.1%}, worst "
        f"{max(errors):.1%}. Calibrated latency of a collective: {1e3 * cost.latency_s(2):.2f} ms for two members, "
        f"growing with their power {cost.latency_growth:.2f} ({1e3 * cost.latency_s(8):.1f} ms for eight). "
        f"Of each plan the least disturbed of {ITERATIONS_PER_PLAN} iterations counts, of the calibration too."
    )
    return f"{summary}\n\n{table(('plan', 'schedule', 'p of slow ranks', 'measured s', 'predicted s', 'error'), rows)}"


def main(count: int, seed: int, kept: Path | None = None) -> None:
    """Measure the plans that are not in `kept` yet and report on all."""
    cases = {number: Case(plan, {}) for number, plan in CALIBRATION.items()}
    cases |= dict(enumerate(random_cases(count, Random(seed)), start=1))
    cases |= {number: Case(plan, {}) for number, plan in AGAIN.items()}
    seconds = _read(kept)

    def note(number: int, measured: Mapping[int, float]) -> None:
        seconds[number] = measured
        if kept is not None:
            kept.write_text(json.dumps(seconds))

    if missing := {n: case for n, case in cases.items() if n not in seconds}:
        measure(missing, note)
    cost, found = compare(cases, seconds)
    facts = {**machine(), "job": f"demo model, 8 workers, virtual clock at {SPEC.clock.flops_per_s:.0e} FLOP/s"}
    command = f"python -m benchmarks.simulate --plans {count} --seed {seed}"
    title = "Predicted and measured iteration times of random plans"
    print(write("simulate", title, command, facts, render(cost, found)).read_text())


def _read(kept: Path | None) -> dict[int, Mapping[int, float]]:
    if kept is None or not kept.exists():
        return {}
    return {int(n): {int(k): v for k, v in s.items()} for n, s in json.loads(kept.read_text()).items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--kept", type=Path, help="what is measured, read and added to")
    given = parser.parse_args()
    main(given.plans, given.seed, given.kept)
