"""The vote counts what it says, and refuses what must not be committed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from resihp_trainer.vote import Ballot, Outcome, count

TWO = (
    Ballot(True, 9.0, 30, 60.0, 0, [0, 2]),
    Ballot(True, 16.0, 20, 40.0, 0, [1], seconds=3.0),
)


def outcome(*ballots: Ballot, epoch: int = 1) -> Outcome:
    total = torch.stack([b.vector(3) for b in ballots]).sum(0)
    return count(total, 5, world_size=len(ballots), expected_tokens=50, epoch=epoch)


def test_a_good_vote() -> None:
    found = outcome(*TWO)
    assert found.refusal == ""
    assert (found.norm, found.tokens, found.mean_loss) == (5.0, 50, 2.0)
    assert found.seconds == 1.5
    assert (found.samples_expected, found.samples_once, found.next_epoch) == (3, 3, 0)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"ok": False}, "1 of 2 ranks voted no"),
        ({"covered": [0]}, "1 documents lost, 0 repeated"),
        ({"covered": [0, 2, 1]}, "0 documents lost, 1 repeated"),
        ({"covered": [0, 1]}, "1 documents lost, 1 repeated"),
        ({"covered": [0, 2, 2]}, "0 documents lost, 1 repeated"),
        ({"tokens": 29}, "49 of 50 tokens"),
        ({"norm_sq": float("nan")}, "not finite"),
        ({"norm_sq": float("inf")}, "not finite"),
        ({"loss": float("nan")}, "not finite"),
    ],
)
def test_refusals(change: dict[str, object], refusal: str) -> None:
    assert refusal in outcome(TWO[0]._replace(**change), TWO[1]).refusal  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=40), st.integers(0, 2**31))
def test_a_change_needs_everybody(ahead: list[int], epoch: int) -> None:
    answering = Ballot(True, 1.0, 50, 1.0, ahead[0], [0, 1, 2])
    ballots = [answering, *(Ballot(True, 1.0, 0, 0.0, a, []) for a in ahead[1:])]
    unanimous = len(set(ahead)) == 1 and ahead[0] > 0
    assert outcome(*ballots, epoch=epoch).next_epoch == (epoch + ahead[0] if unanimous else 0)


def test_unanimity_is_exact_for_large_worlds() -> None:
    vote = torch.stack([Ballot(True, 1.0, 0, 0.0, 1000, []).vector(0)] * 20_000).sum(0)
    assert count(vote, 1, world_size=20_000, expected_tokens=0, epoch=10**6).next_epoch == 10**6 + 1000
    vote += Ballot(True, 0.0, 0, 0.0, 1001, []).vector(0) - Ballot(True, 0.0, 0, 0.0, 1000, []).vector(0)
    assert count(vote, 1, world_size=20_000, expected_tokens=0, epoch=10**6).next_epoch == 0


def test_whether_copies_and_files_are_complete_everywhere() -> None:
    found = outcome(TWO[0]._replace(copies=1, files=1), TWO[1]._replace(copies=1))
    assert (found.copies, found.files) == (2, 1)
