"""When rounds begin: a function of the iteration and the votes only, so that all ranks begin the same ones."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from resihp_messages.job import SnapshotConfig
from resihp_plan import ParallelPlan, layout
from resihp_trainer.join import Applied
from resihp_trainer.saving import Saver
from resihp_trainer.vote import Outcome
from support.trainer_cases import SPEC, replica, small_job, stage
from support.trainer_state import values

PLAN = ParallelPlan(1, (replica(3, stage(0, 2, [0]), stage(2, 4, [1])),))
HELD = layout(PLAN, SPEC)
GUARDS = {0: 1, 1: 0}


class Sent:
    """A pair group that delivers at once (zeros)."""

    name, ranks = "copy/0-1", (0, 1)

    def broadcast(self, tensor: Tensor, src: int) -> Sent:
        return self

    def wait(self) -> None: ...

    def is_done(self) -> bool:
        return True


class Played:
    """Rank 0 of a job; the other rank always says the same."""

    seconds = 0.0
    """Of an iteration, by the vote."""

    def __init__(self, iterations: int = 30, **spec: object) -> None:
        self.saver = Saver(small_job(iterations, **spec), 0, torch.float64, lambda: None, lambda *_: None)
        self.held = HELD
        self.enter()

    def enter(self, guards: dict[int, int] | None = None) -> None:
        self.saver.enter(self.held, GUARDS if guards is None else guards, {"copy/0-1": Sent()})  # type: ignore[dict-item]

    def commit(self, iteration: int, *, next_epoch: int = 0, votes: tuple[int, int] | None = None) -> dict[str, float]:
        copies, files, own_s = self.saver.ballot()
        assert own_s >= 0.0
        total = votes or (2 * copies, 2 * files)
        outcome = Outcome(iteration, 1.0, 10, 1.0, 2, 2, next_epoch, "", *total, self.seconds)
        return self.saver.after_commit(values(self.held, 0), Applied(iteration, 1, 10, 2, 1.0, 1.0), outcome)

    @property
    def newest(self) -> int:
        """Iteration of the newest snapshot that was begun."""
        return max((key[0] for key in self.saver.snapshots.kept), default=0)


def begun(job: Played, iterations: range) -> list[int]:
    found = []
    for k in iterations:
        job.commit(k)
        if job.newest == k:
            found.append(k)
    return found


def test_the_first_of_an_epoch_and_every_so_many() -> None:
    job = Played(snapshots={"every": 4})
    assert begun(job, range(1, 11)) == [1, 4, 8]
    job.saver.leave()
    job.enter()
    assert begun(job, range(11, 14)) == [11, 12]
    assert begun(job, range(28, 31)) == [28]  # nothing is left to lose after the last


def test_copies_of_short_iterations_are_seconds_apart() -> None:
    job = Played(snapshots={"every": 4, "apart_s": 12.0})
    job.seconds = 2.0
    assert begun(job, range(1, 18)) == [1, 8, 16]  # at least 12 s, at a multiple of 4
    job.saver.leave()
    job.enter()
    assert begun(job, range(18, 26)) == [18, 24]  # the seconds begin anew with the epoch
    job.seconds = 30.0
    assert begun(job, range(26, 30)) == [28]


def test_a_given_number_of_iterations_is_exact() -> None:
    assert SnapshotConfig(every=7).apart_s == 0.0
    assert SnapshotConfig(every=7, apart_s=5.0).apart_s == 5.0
    spoken = SnapshotConfig()
    assert spoken.apart_s > 0
    assert SnapshotConfig.model_validate(spoken.model_dump()) == spoken


def test_a_round_under_way_holds_back_the_next() -> None:
    job = Played(snapshots={"every": 2})
    job.commit(1)
    for k in range(2, 6):
        assert job.commit(k, votes=(1, 0)).keys() == {"snapshot"}  # the other rank is not ready
        assert job.newest == 1
    job.commit(6)
    assert job.newest == 6


def test_none_on_the_eve_of_a_switch_or_without_a_guardian_or_switched_off() -> None:
    job = Played(snapshots={"every": 2})
    job.commit(1, next_epoch=2)
    assert job.newest == 0
    job.enter({})
    assert begun(job, range(2, 6)) == []
    off = Played(snapshots={"every": 0})
    off.enter({})
    assert off.commit(2) == {}
    assert not off.saver.takes_copies


def test_replicas_without_guardians_keep_their_own_as_long_as_fingerprints_compare_them() -> None:
    pair = layout(ParallelPlan(1, (replica(2, stage(0, 4, [0])), replica(1, stage(0, 4, [1])))), SPEC)
    for every, expected in ((5, [1, 4, 8]), (0, [])):
        job = Played(snapshots={"every": 4}, telemetry={"fingerprint_every": every})
        job.held = pair
        job.enter({})
        assert begun(job, range(1, 10)) == expected


def test_checkpoints_wait_for_the_round_under_way(tmp_path: Path) -> None:
    job = Played(snapshots={"every": 3}, checkpoints={"path": str(tmp_path), "every": 4})
    files = job.saver.checkpoints
    assert files is not None
    job.commit(1)
    job.commit(2)
    job.commit(3)
    assert not files.is_busy
    job.commit(4, votes=(1, 0))  # the round of 3 is not over: the file is wanted
    assert not files.is_busy
    job.commit(5)
    assert job.newest == 5
    assert files.is_busy
    while job.saver.ballot()[1] == 0:
        pass
    assert job.commit(6, votes=(2, 2)).keys() >= {"snapshot"}
    assert not files.is_busy


def test_a_checkpoint_is_not_made_of_a_copy_that_is_not_what_was_fingerprinted(tmp_path: Path) -> None:
    job = Played(snapshots={"every": 4}, checkpoints={"path": str(tmp_path), "every": 4})
    files = job.saver.checkpoints
    assert files is not None
    for k in range(1, 5):
        job.commit(k)
    assert files.is_busy
    job.saver.check(4, {"bucket/0-1": "of another state"}, ())
    assert job.saver.ballot()[:2] == (3, 3)  # more than the world has ranks
    job.commit(5, votes=(4, 4))
    assert not files.is_busy
    assert [key[0] for key in job.saver.snapshots.kept] == [1]
