"""State that replicas disagree on: since when, and who was damaged once it is redone."""

from __future__ import annotations

import pytest

from resihp_detect import Fingerprints, Redone


def told(state: Fingerprints, iteration: int, *digests: str) -> list[int | None]:
    return [d.agreed for rank, digest in enumerate(digests) for d in state.add(iteration, rank, {"b": digest})]


def test_agreement_is_remembered_over_epochs_and_restarts() -> None:
    state = Fingerprints(2)
    assert told(state, 10, "aa", "ab") == [None]  # never seen to agree
    state = Fingerprints(2)
    assert told(state, 10, "aa", "aa") == []
    assert told(state, 20, "ba", "ba") == []
    restored = Fingerprints(2)
    restored.restore(state.snapshot())
    following = Fingerprints(2, agreed=restored.agreed)
    assert told(following, 30, "ca", "cb") == [20]
    assert following.agreed == 20


def test_after_a_return_only_the_history_that_is_left_counts() -> None:
    state = Fingerprints(2, agreed=50)
    assert told(state, 31, "aa", "ab") == [30]  # the epoch went back to 30
    assert told(state, 50, "ba", "ba") == []
    assert state.agreed == 50


def test_what_only_some_owners_said_is_no_agreement() -> None:
    state = Fingerprints(3, max_pending=1)
    state.add(10, 0, {"b": "aa"})
    state.add(10, 1, {"b": "aa"})
    state.add(20, 0, {"b": "ba"})  # the oldest is judged without rank 2
    assert state.agreed is None


@pytest.mark.parametrize(
    ("first", "second", "damaged"),
    [
        ((2.0, 1e-5, 1e-9), (1.0, 1e-5, 1e-9), (0,)),
        ((1.0, 1e-5, 1e-9), (1.0, 1e-5, 3e-9), (1,)),
        ((1.0, 3e-5, 1e-9), (1.0 + 1e-9, 1e-5, 1e-9), (0,)),  # by the part in which they differ most
        ((0.0, 0.0, 0.0), (0.0, 0.0, 1e-30), (1,)),
    ],
)
def test_who_is_farther_was_damaged(
    first: tuple[float, float, float], second: tuple[float, float, float], damaged: tuple[int, ...]
) -> None:
    redone = Redone(2)
    assert redone.add(60, 0, {"b": first, "c": (1.0, 1.0, 1.0)}) is None
    again = Redone(2)
    again.restore(redone.snapshot())
    found = again.add(60, 1, {"b": second, "c": (1.0, 1.0, 1.0)})
    assert found is not None
    assert (found.ranks, set(found.distances)) == (damaged, {"b"})
    assert again.add(60, 1, {"b": second, "c": (1.0, 1.0, 1.0)}) is None  # the same report again


def test_no_difference_names_nobody() -> None:
    redone = Redone(2)
    assert redone.add(60, 0, {"b": (1.0, 1.0, 1.0)}) is None
    assert redone.add(60, 1, {"b": (1.0, 1.0, 1.0)}) is None
    assert redone.add(61, 0, {}) is None
