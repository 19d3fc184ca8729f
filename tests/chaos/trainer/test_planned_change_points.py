"""A rank dies or freezes at each named point of a planned change (docs/protocol.md, "Planned change")."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from resihp_messages import FaultPoint
from resihp_messages.link import IterationCommitted, PlanHeld, PlanInstalled
from resihp_plan import ParallelPlan
from resihp_trainer.trials.trainer_job import TrainerJob
from resihp_trainer.trials.zygote_client import ZygoteClient
from support.trainer_cases import HEALTHY, assert_undisturbed, plan_without, replica, small_job, stage

CHANGED = ParallelPlan(
    2,
    (
        replica(4, stage(0, 1, [0]), stage(1, 4, [1, 2, 3], [2, 1, 1])),
        replica(2, stage(0, 3, [4, 5], [3, 1]), stage(3, 4, [6, 7])),
    ),
)
"""Other layers, degrees and shares: everybody gives and gets state."""
POINTS = [point for point in FaultPoint if point.of_change]
VICTIMS = (1, 6)
"""One whose group grows, one whose stage shrinks."""


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ZygoteClient, str]]:
    client = ZygoteClient(tmp_path_factory.mktemp("zygote"), environment={"OMP_NUM_THREADS": "1"})
    _, address = client.store()
    yield client, address
    assert client.close() == 0


Start = Callable[[FaultPoint, str, int], TrainerJob]


@pytest.fixture
def start(zygote: tuple[ZygoteClient, str], tmp_path: Path) -> Iterator[Start]:
    jobs: list[TrainerJob] = []

    def start_job(point: FaultPoint, kind: str, victim: int) -> TrainerJob:
        fault = {"kind": kind, "rank": victim, "iteration": 1, "point": point}
        spec = small_job(9, output_dir=str(tmp_path), faults=[fault])
        jobs.append(TrainerJob(*zygote, spec, range(8)))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.close()


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("kind", ["kill", "freeze"])
@pytest.mark.parametrize("point", POINTS)
def test_training_goes_on_from_each_point(start: Start, point: FaultPoint, kind: str, victim: int) -> None:
    job = start(point, kind, victim)
    job.install(HEALTHY, "initial")

    def on_pump() -> None:
        if job.committed(0) >= 1 and len(job.plans) == 1:
            job.install(CHANGED, "planned")

    job.run(lambda plan, dead: plan_without(plan, dead, state_plan=HEALTHY), on_pump)
    assert job.dead == {victim: -signal.SIGKILL}
    assert [plan.epoch for plan in job.plans] == [1, 2, 3]
    assert_struck_at(job, point, victim)
    assert_undisturbed(job)


def assert_struck_at(job: TrainerJob, point: FaultPoint, victim: int) -> None:
    """What the victim had said, and what the others had come to, when it struck."""
    held = CHANGED.epoch in {f.epoch for f in job.frames[victim] if isinstance(f, PlanHeld)}
    installed = {rank for rank, _ in job.all(PlanInstalled, CHANGED.epoch)}
    trained = {rank for rank, _ in job.all(IterationCommitted, CHANGED.epoch)}
    assert held == (point is not FaultPoint.PREPARE)
    assert (victim in installed) == (point is FaultPoint.FIRST_VOTE)
    assert victim not in trained
    match point:
        case FaultPoint.PREPARE | FaultPoint.SWITCH | FaultPoint.MOVE:
            assert not installed  # nobody passes the barrier without it
        case FaultPoint.READY:
            assert not trained  # the others may have passed the barrier; none can vote without it
        case FaultPoint.FIRST_VOTE:
            assert installed == set(CHANGED.world)
