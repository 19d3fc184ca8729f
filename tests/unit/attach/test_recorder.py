"""Compute apart from waiting, on a clock that the test moves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from resihp_attach import Watch
from resihp_attach.lengths import Work
from resihp_attach.recorder import Recorder


class Hands:
    """A recorder with a clock and what it emitted."""

    def __init__(self) -> None:
        self.now_s, self.delay_s = 100.0, 5.0
        self.frames: list[dict[str, Any]] = []
        self.recorder = Recorder(lambda: self.now_s, self.frames.append, lambda: self.delay_s)

    def passes(self, seconds: float, held: float = 0.0) -> None:
        """`held`: of these, so many for a processor."""
        self.now_s += seconds
        self.delay_s += held

    def waits(self, seconds: float, held: float = 0.0) -> None:
        begun = self.recorder.wait_begins()
        self.passes(seconds, held)
        self.recorder.wait_ends(begun)

    def micro_batch(self, *, forward: float = 1.0, backward: float = 2.0, tail: float = 0.0, wait: float = 0.0) -> None:
        r = self.recorder
        r.forward_begins(Work(10, 100, "mask"))
        self.passes(forward)
        r.forward_ends()
        r.backward_begins()
        self.passes(backward)
        self.waits(wait)
        r.gradients_done()
        self.passes(tail)
        r.backward_ends()


@pytest.fixture
def hands() -> Hands:
    return Hands()


def test_waits_and_tail_are_no_compute(hands: Hands) -> None:
    hands.micro_batch(forward=1.0, backward=2.0, wait=0.5, tail=3.0)
    hands.recorder.step_done()
    (frame,) = hands.frames
    assert frame["unit_forward_s"] == [pytest.approx(1.0)]
    assert frame["unit_backward_s"] == [pytest.approx(2.0)]
    assert frame["wait_s"] == pytest.approx(3.5)
    assert frame["step_s"] == pytest.approx(6.5)
    assert (frame["unit_tokens"], frame["unit_sum_sq_len"]) == ([10], [100])


def test_a_wait_in_the_tail_counts_once(hands: Hands) -> None:
    r = hands.recorder
    r.forward_begins()
    r.forward_ends()
    r.backward_begins()
    hands.passes(2.0)
    r.gradients_done()
    hands.waits(1.0)
    hands.passes(0.25)
    r.backward_ends()
    r.step_done()
    assert hands.frames[0]["unit_backward_s"] == [pytest.approx(2.0)]
    assert hands.frames[0]["wait_s"] == pytest.approx(1.25)


def test_a_wait_within_a_wait_counts_once(hands: Hands) -> None:
    r = hands.recorder
    r.forward_begins()
    outer = r.wait_begins()  # DDP's broadcast of buffers, by a hook of the job that waits in Python
    hands.passes(0.5)
    hands.waits(1.0, held=0.25)
    hands.passes(0.5, held=0.25)
    r.wait_ends(outer)
    hands.passes(2.0, held=0.5)
    r.forward_ends()
    r.step_done()
    assert hands.frames[0]["wait_s"] == pytest.approx(2.0)
    assert hands.frames[0]["unit_forward_s"] == [pytest.approx(1.5)]


def test_time_without_a_processor_is_no_compute_and_counts_once(hands: Hands) -> None:
    r = hands.recorder
    r.forward_begins()
    hands.passes(1.5, held=0.5)
    r.forward_ends()
    hands.passes(3.0, held=3.0)  # between the passes
    r.backward_begins()
    hands.passes(2.5, held=0.5)
    hands.waits(4.0, held=1.0)  # some of the wait went on because nobody woke us: it was a wait all the same
    hands.passes(0.25, held=0.25)
    r.gradients_done()
    hands.passes(1.0, held=0.75)
    r.backward_ends()
    r.step_done()
    (frame,) = hands.frames
    assert frame["unit_forward_s"] == [pytest.approx(1.0)]
    assert frame["unit_backward_s"] == [pytest.approx(2.0)]
    assert frame["wait_s"] == pytest.approx(5.0)
    assert frame["step_s"] == pytest.approx(12.25)


def test_every_micro_batch_has_its_own_time(hands: Hands) -> None:
    hands.micro_batch(forward=1.0)
    hands.micro_batch(forward=3.0, backward=4.0)
    hands.recorder.step_done()
    assert hands.frames[0]["unit_forward_s"] == [pytest.approx(1.0), pytest.approx(3.0)]
    assert hands.frames[0]["unit_backward_s"] == [pytest.approx(2.0), pytest.approx(4.0)]


def test_a_chunked_loss_shares_its_sum(hands: Hands) -> None:
    r = hands.recorder
    for _ in range(2):
        r.forward_begins()
        r.forward_ends()
        for _ in range(3):  # torchtitan's loss runs several backward passes per micro-batch
            r.backward_begins()
            hands.passes(1.0)
            r.backward_ends()
    r.step_done()
    assert hands.frames[0]["unit_backward_s"] == [pytest.approx(3.0), pytest.approx(3.0)]


def test_nested_passes_count_once(hands: Hands) -> None:
    r = hands.recorder
    r.backward_begins()
    hands.passes(1.0)
    r.backward_begins()  # reentrant checkpointing
    hands.passes(1.0)
    r.backward_ends()
    r.backward_ends()
    r.step_done()
    assert hands.frames[0]["unit_backward_s"] == [pytest.approx(2.0)]


def test_a_second_optimizer_ends_no_iteration(hands: Hands) -> None:
    hands.micro_batch()
    hands.recorder.step_done()
    hands.recorder.step_done()
    assert [f["iteration"] for f in hands.frames] == [1]


def test_evaluation_is_announced_and_no_micro_batch(hands: Hands) -> None:
    hands.micro_batch()
    with hands.recorder.in_phase("eval", 60.0):
        assert hands.recorder.protected_until_s > hands.now_s
        hands.micro_batch(forward=5.0)
    assert hands.recorder.protected_until_s == 0.0
    hands.recorder.step_done()
    assert hands.frames[0]["phases_s"] == {"eval": pytest.approx(7.0)}
    assert hands.frames[0]["unit_forward_s"] == [pytest.approx(1.0)]


def test_a_loop_that_says_its_units(hands: Hands) -> None:
    r = hands.recorder
    with r.unit(Work(7, 49, "declared")):
        hands.passes(1.5)  # nobody sees the model being called
        r.backward_begins()
        hands.passes(2.0)
        r.backward_ends()
    r.step_done()
    frame = hands.frames[0]
    assert (frame["unit_forward_s"], frame["unit_backward_s"]) == ([pytest.approx(1.5)], [pytest.approx(2.0)])
    assert (frame["unit_tokens"], frame["lengths_source"]) == ([7], "declared")


def test_a_declared_unit_whose_model_is_seen_counts_once(hands: Hands) -> None:
    with hands.recorder.unit(Work(7, 49, "declared")):
        hands.micro_batch()
    hands.recorder.step_done()
    assert hands.frames[0]["unit_tokens"] == [7]


def test_a_pass_that_was_left_by_an_exception_spoils_one_iteration_only(hands: Hands) -> None:
    hands.micro_batch()
    hands.recorder.backward_begins()  # raises: no end is seen
    hands.recorder.step_done()
    hands.micro_batch()
    hands.recorder.step_done()
    assert hands.frames[1]["unit_backward_s"] == [pytest.approx(2.0)]


def test_what_comes_before_training_belongs_to_no_iteration(hands: Hands) -> None:
    hands.passes(60.0)
    hands.micro_batch()
    hands.recorder.step_done()
    assert hands.frames[0]["step_s"] == pytest.approx(3.0)


def test_a_loss_may_be_a_number_or_a_tensor_that_wants_a_gradient() -> None:
    own = Watch()
    own.loss(2.5)
    assert own.recorder.loss == 2.5
    own.loss(torch.tensor(1.5, requires_grad=True))  # without a warning
    assert own.recorder.loss == 1.5
    own.loss(float("nan"))
    assert own.recorder.loss is None
