"""Does `simulate` predict the iteration time? Random plans on the virtual clock, predicted against measured.

    python -m benchmarks.simulate --plans 20 --seed 7

One job on the virtual clock is switched through random plans: uneven tensor parallelism, uneven stages, migrated
units, slow devices, both schedules. The latency of a collective on this host is calibrated on the first, regular plan,
which is not among those that count. Each prediction is for the very documents of the measured iterations.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.demo import JOB, RunningDemo, demo
from benchmarks.report import machine, table, write
from resihp_cli.client import GatewayClient, is_temporary
from resihp_cli.errors import CliError
from resihp_messages import JobSpec
from resihp_plan import (
    CostModel,
    InvalidPlan,
    Migration,
    ParallelPlan,
    ReplicaPlan,
    Schedule,
    StagePlan,
    describe_plan,
    program,
    simulate,
    slice_batch,
    validate,
)
from resihp_trainer.data import documents
from resihp_trainer.reference import corpus_of, model_of

ITERATIONS_PER_PLAN = 4
"""Measured ones, after the first of the plan, which contains the change."""
SPEEDS = (0.4, 0.6, 0.8)
SPEC = JobSpec.model_validate(
    {"name": JOB, "iterations": 100_000, "seed": 7, "clock": {"virtual": True, "flops_per_s": 1e9}}
)
"""The demo's job on devices so slow that two cores are mostly idle."""
MODEL = model_of(SPEC)
REGULAR = ParallelPlan(
    0,
    tuple(
        ReplicaPlan((StagePlan(0, 4, (a, a + 1), (1, 1)), StagePlan(4, 8, (a + 2, a + 3), (1, 1))), 4) for a in (0, 4)
    ),
)


@dataclass(frozen=True)
class Case:
    """A plan on devices of these speeds (1 where missing)."""

    plan: ParallelPlan
    health: Mapping[int, float]


@dataclass(frozen=True)
class Compared:
    """Medians over the measured iterations of a case."""

    case: Case
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1.0


def random_cases(count: int, rng: Random) -> list[Case]:
    """Valid plans of the job over its eight devices."""
    found: list[Case] = []
    while len(found) < count:
        slow = {rank: rng.choice(SPEEDS) for rank in rng.sample(range(8), rng.choice((0, 1, 2)))}
        plan = _random_plan(rng)
        try:
            validate(plan, MODEL, alive=range(8), num_micro_batches=SPEC.batch.micro_batches)
        except InvalidPlan:
            continue
        found.append(Case(plan, slow))
    return found


def _random_plan(rng: Random) -> ParallelPlan:
    """One or two replicas; every second pair has equal layers, so that units can migrate between them."""
    ranks = rng.sample(range(8), 8)
    total = SPEC.batch.micro_batches
    groups = [ranks] if rng.random() < 0.2 else [ranks[:4], ranks[4:]]
    depth = rng.choice((1, 2, 2, 3)) if len(groups) == 2 else rng.choice((2, 3, 4))
    share = rng.randint(2, total - 2)
    counts = [total] if len(groups) == 1 else [share, total - share]
    cuts = _cuts(rng, depth)
    replicas = []
    for members, count in zip(groups, counts, strict=True):
        bounds = cuts if rng.random() < 0.6 else _cuts(rng, depth)
        ends = [0, *sorted(rng.sample(range(1, len(members)), depth - 1)), len(members)]
        stages = tuple(
            StagePlan(a, b, tuple(members[i:j]), tuple(rng.choice((1, 1, 2, 3)) for _ in range(i, j)))
            for (a, b), (i, j) in zip(itertools.pairwise(bounds), itertools.pairwise(ends), strict=True)
        )
        replicas.append(ReplicaPlan(stages, count))
    plan = ParallelPlan(0, tuple(replicas), schedule=rng.choice(tuple(Schedule)))
    return replace(plan, migrations=_migrations(plan, rng))


def _cuts(rng: Random, depth: int) -> list[int]:
    return [0, *sorted(rng.sample(range(1, MODEL.num_layers), depth - 1)), MODEL.num_layers]


def _migrations(plan: ParallelPlan, rng: Random) -> tuple[Migration, ...]:
    if len(plan.replicas) < 2:
        return ()
    layers = [[(s.layer_start, s.layer_stop) for s in r.stages] for r in plan.replicas]
    shared = [s for s, (a, b) in enumerate(zip(*layers, strict=True)) if a == b]
    units = [(a, s, m) for a in (0, 1) for s in shared for m in range(plan.replicas[a].num_micro_batches)]
    chosen = rng.sample(units, min(len(units), rng.choice((0, 1, 2, 3))))
    return tuple(Migration(a, s, m, 1 - a) for a, s, m in sorted(chosen))


def cost_of(latency_s: float) -> CostModel:
    return CostModel.for_model(
        MODEL,
        flops_per_s=SPEC.clock.flops_per_s,
        collective_latency_s=latency_s,
        transfer_latency_s=latency_s,
    )


class Predicted:
    """Predicted seconds of single iterations; the batches are a function of the seed."""

    def __init__(self) -> None:
        self._corpus = corpus_of(SPEC)

    def seconds(self, case: Case, iteration: int, cost: CostModel) -> float:
        batch = documents(self._corpus, SPEC.batch, SPEC.seed, iteration)
        tokens = SPEC.batch.tokens_per_micro_batch
        work = slice_batch(batch.documents, case.plan, MODEL, tokens_per_micro_batch=tokens).work
        return simulate(case.plan, program(case.plan), work, cost, health=case.health).makespan_s

    def latency(self, case: Case, measured: Mapping[int, float]) -> float:
        """The latency with which the regular plan takes as long as it did (bisection: time grows with latency)."""
        low, high = 0.0, 0.1
        for _ in range(30):
            middle = (low + high) / 2
            short = median(self.seconds(case, k, cost_of(middle)) for k in measured) < median(measured.values())
            low, high = (middle, high) if short else (low, middle)
        return low


async def measure(cases: Sequence[Case]) -> list[Mapping[int, float]]:
    """Per case: iteration -> seconds, of the iterations after the change to it."""
    with tempfile.TemporaryDirectory(prefix="resihp-simulate-") as folder:
        job = Path(folder) / "job.toml"
        job.write_text(
            f'name = "{JOB}"\niterations = {SPEC.iterations}\nseed = {SPEC.seed}\n'
            f"[clock]\nvirtual = true\nflops_per_s = {SPEC.clock.flops_per_s}\n"
        )
        async with (
            demo([str(job)], command_name="train") as running,
            GatewayClient((await running.info()).gateway_url) as client,
        ):
            await running.reach(client, 1)
            return [await _measure(running, client, case) for case in cases]


async def _measure(running: RunningDemo, client: GatewayClient, case: Case) -> Mapping[int, float]:
    for rank in range(8):
        await client.inflict(JOB, rank, "slow", factor=case.health.get(rank, 1.0), for_s=0.0)
    epoch = (await client.job(JOB)).epoch
    await _ask(client, case.plan)
    while (await client.job(JOB)).epoch == epoch:
        running.check_alive()
        await asyncio.sleep(0.1)
    first = await running.committed(client) + 2
    await running.reach(client, first + ITERATIONS_PER_PLAN - 1)
    rows = [i for i in await client.iterations(JOB) if first <= i.iteration < first + ITERATIONS_PER_PLAN]
    return {i.iteration: i.step_s for i in rows if i.step_s is not None}


async def _ask(client: GatewayClient, plan: ParallelPlan) -> None:
    wanted = plan.to_dict()
    while True:
        try:
            await client.request_plan(JOB, wanted, "benchmark")
            return
        except CliError as error:
            if not is_temporary(error):
                raise
            await asyncio.sleep(0.1)


def compare(cases: Sequence[Case], measured: Sequence[Mapping[int, float]]) -> tuple[float, list[Compared]]:
    """The calibrated latency, and every case but the first."""
    predicted = Predicted()
    latency_s = predicted.latency(cases[0], measured[0])
    cost = cost_of(latency_s)
    return latency_s, [
        Compared(case, median(seconds.values()), median(predicted.seconds(case, k, cost) for k in seconds))
        for case, seconds in zip(cases[1:], measured[1:], strict=True)
    ]


def render(latency_s: float, found: Sequence[Compared]) -> str:
    """Markdown."""
    errors = sorted(abs(c.error) for c in found)
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
        f"Virtual clock. Absolute error: median {median(errors):.1%}, worst {errors[-1]:.1%}. "
        f"Calibrated latency of a collective: {1e3 * latency_s:.2f} ms."
    )
    return f"{summary}\n\n{table(('plan', 'schedule', 'p of slow ranks', 'measured s', 'predicted s', 'error'), rows)}"


async def main(count: int, seed: int) -> None:
    cases = [Case(REGULAR, {}), *random_cases(count, Random(seed))]
    latency_s, found = compare(cases, await measure(cases))
    facts = {**machine(), "job": f"demo model, 8 workers, virtual clock at {SPEC.clock.flops_per_s:.0e} FLOP/s"}
    command = f"python -m benchmarks.simulate --plans {count} --seed {seed}"
    title = "Predicted and measured iteration times of random plans"
    print(write("simulate", title, command, facts, render(latency_s, found)).read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.plans, given.seed)))
