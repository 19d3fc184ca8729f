"""Survivors of a death at any operation end where an undisturbed run ends. Ranks are threads, the deaths scripted."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from threading import Lock

import pytest
import torch
from torch import nn

from resihp_attach.ddp import Job, StateDiverged
from resihp_attach.ddp.epochs import conclude
from resihp_attach.ddp.ties import Ties, tie
from resihp_attach.place import LAUNCH_FD
from resihp_cli.launching.members import MAX_BROKEN, Epoch, Members
from resihp_cli.launching.ranks import ending
from support.thread_launch import Death, ThreadLaunch

WORLD, ROWS, STEPS = 4, 12, 3
DATA = torch.randn(STEPS, ROWS, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LABELS = torch.randint(0, 8, (STEPS, ROWS), generator=torch.Generator().manual_seed(2))
OPERATIONS = 13
"""Of an undisturbed rank: settle (0), share (1 to 4), then steps of two buckets (the first one of one) and a vote."""
VOTES = (6, 9, 12)
DRAWING = Lock()
"""torch has one random generator for all threads."""


def model(seed: int) -> nn.Module:
    with DRAWING, torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)).double()


Outcome = tuple[list[torch.Tensor], list[tuple[int, int]]]


def train(ties: Ties, before: Callable[[int], None] = lambda iteration: None) -> Outcome:
    """Parameters at the end, and the steps that were begun, with their worlds."""
    net = model(seed=ties.rank)  # what the first rank draws counts
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    job = Job(net, optimizer, bucket_cap_mb=0.001, ties=ties)
    begun = []
    for step in job.steps(STEPS):
        begun.append((step.iteration, step.world))
        with step:
            before(step.iteration)
            part = step.share(ROWS)
            for half in (slice(0, 1), slice(1, None)):  # two micro-batches
                x, y = DATA[step.iteration - 1][part][half], LABELS[step.iteration - 1][part][half]
                with job.model.no_sync() if half.stop else torch.enable_grad():
                    loss = nn.functional.cross_entropy(job.model(x), y, reduction="sum") * step.world / ROWS
                    loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return [p.detach().clone() for p in net.parameters()], begun


@pytest.fixture(scope="module")
def reference() -> list[torch.Tensor]:
    """One process, the whole batch, no DDP."""
    net = model(seed=0)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for x, y in zip(DATA, LABELS, strict=True):
        nn.functional.cross_entropy(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in net.parameters()]


def check(launch: ThreadLaunch, reference: list[torch.Tensor], body: Callable[[Ties], Outcome] = train) -> None:
    results = launch.run(body)
    assert sorted(launch.fired, key=lambda d: d.rank) == sorted(launch.deaths, key=lambda d: d.rank)
    assert sorted(results) == sorted(set(range(WORLD)) - {d.rank for d in launch.deaths})
    for parameters, begun in results.values():
        assert sorted({iteration for iteration, _ in begun}) == [1, 2, 3]
        for ours, theirs in zip(parameters, reference, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-12)
    for a, b in itertools.pairwise(parameters for parameters, _ in results.values()):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_without_a_death_it_is_ordinary_training(reference: list[torch.Tensor]) -> None:
    launch = ThreadLaunch(WORLD)
    check(launch, reference)
    assert launch.members.epoch == Epoch(1, (0, 1, 2, 3))


@pytest.mark.parametrize("has_sent", [False, True])
@pytest.mark.parametrize("at", range(OPERATIONS))
def test_a_rank_may_die_at_any_operation(at: int, has_sent: bool, reference: list[torch.Tensor]) -> None:
    launch = ThreadLaunch(WORLD, [Death(2, at, has_sent)])
    check(launch, reference)
    assert launch.members.epoch == Epoch(2, (0, 1, 3))


@pytest.mark.parametrize("missed_by", [(0,), (1, 3), (0, 1, 3)])
@pytest.mark.parametrize("at", [*VOTES, 8])
def test_survivors_may_miss_the_result_that_others_have(
    at: int, missed_by: tuple[int, ...], reference: list[torch.Tensor]
) -> None:
    """At a vote: whoever has it has committed, and the others apply the step after all."""
    check(ThreadLaunch(WORLD, [Death(2, at, True, missed_by)]), reference)


@pytest.mark.parametrize("second", [8, 9, 10, 12])
def test_another_rank_may_die_while_the_others_recover(second: int, reference: list[torch.Tensor]) -> None:
    launch = ThreadLaunch(WORLD, [Death(2, 8, False), Death(0, second, True, (3,))])
    check(launch, reference)
    assert launch.members.alive == {1, 3}


@pytest.mark.parametrize("late", [1, 2])
def test_ranks_may_be_in_other_passes_when_one_dies(late: int, reference: list[torch.Tensor]) -> None:
    """Rank 0 comes to its forward pass of step `late` when the death is known; the others have a backward pass more
    behind them, after which DDP deals gradients to buckets anew."""
    launch = ThreadLaunch(WORLD, [Death(2, 5 if late == 1 else 7, False)])

    def body(ties: Ties) -> Outcome:
        def wait(iteration: int) -> None:
            if ties.rank == 0 and iteration == late:
                with launch.news:
                    launch.wait_for(lambda: launch.aborted)

        return train(ties, wait)

    check(launch, reference, body)


def test_a_rank_that_is_behind_for_no_reason_is_no_peer() -> None:
    assert conclude([(3, False, 7), (3, False, 7)], (0, 1)) == 3
    assert conclude([(0, False, 1), (0, False, 2)], (0, 1)) == 0  # before the first step, the first one's count
    with pytest.raises(StateDiverged, match="ranks \\[1\\] are behind step 3"):
        conclude([(3, False, 7), (2, False, 5)], (0, 1))
    with pytest.raises(StateDiverged, match="differ"):
        conclude([(3, False, 7), (3, False, 8)], (0, 1))


def test_ranks_that_train_different_models_are_refused() -> None:
    def body(ties: Ties) -> str:
        net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2 + ties.rank % 2)))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        try:
            Job(net, optimizer, ties=ties)
        except StateDiverged as error:
            return str(error)
        return ""

    texts = set(ThreadLaunch(2).run(body).values())
    assert len(texts) == 1
    assert "shapes" in texts.pop()


def test_under_another_launcher_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LAUNCH_FD, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="resihp launch"):
        tie()


def test_members_wait_for_everybody_and_go_on_without_the_dead() -> None:
    members = Members(range(3))
    members.hello(0)
    members.gone(2)
    assert members.epoch is None
    members.hello(1)
    assert members.epoch == Epoch(1, (0, 1))
    members.done(0, 1)
    members.gone(1)
    assert members.epoch == Epoch(2, (0,))
    assert not members.is_leaving
    members.done(0, 1)  # of the old epoch: it is still needed
    assert not members.is_leaving
    members.done(0, 2)
    assert members.is_leaving


def test_a_network_that_breaks_again_and_again_is_nobodys_death() -> None:
    members = Members(range(2))
    for rank in range(2):
        members.hello(rank)
    assert all(members.broken(number) for number in range(1, 1 + MAX_BROKEN))
    assert members.broken(1)  # old news
    assert members.resumed(1 + MAX_BROKEN)
    assert members.broken(1 + MAX_BROKEN)
    assert [members.broken(number) for number in range(2 + MAX_BROKEN, 5 + MAX_BROKEN)] == [True, True, False]


def test_endings_in_words() -> None:
    assert [ending(3), ending(-signal.SIGKILL), ending(-63)] == ["exit status 3", "SIGKILL", "signal 63"]
