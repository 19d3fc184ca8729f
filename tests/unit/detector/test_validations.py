"""Answers of probed ranks -> one conclusion, in any order, twice, or across a restart."""

from __future__ import annotations

from resihp_detector.validations import Validations
from resihp_messages import AnyEnvelope, ack


def answer(rank: int, compute_s: float = 1.0, *, asked: tuple[int, ...] = (0, 1, 2), **link_s: float) -> AnyEnvelope:
    body = ack.ValidationResult(
        node=f"n{rank}",
        validation_id="v1",
        rank=rank,
        asked=asked,
        compute_s=compute_s,
        link_s={name.replace("_", ">")[1:]: s for name, s in link_s.items()},
        iteration=14,
    )
    return AnyEnvelope.of(body, job="demo", source="agent", incarnation="a", epoch=3)


def concluded(*answers: AnyEnvelope) -> Validations:
    found = Validations()
    for envelope in answers:
        assert isinstance(envelope.body, ack.ValidationResult)
        found.take(envelope, envelope.body)
    return found


def test_the_slow_device_is_named_once_everybody_has_answered() -> None:
    assert concluded(answer(0), answer(1, 2.0)).due() == ()
    [said] = concluded(answer(0), answer(1, 2.0), answer(1, 2.0), answer(2)).due()
    assert (said.body.verdict.fault, said.body.verdict.ranks, said.body.verdict.node) == ("device_slow", (1,), "n1")
    assert said.body.verdict.p == 0.5
    assert (said.job, said.epoch, said.correlation_id) == ("demo", 3, "v1")
    [again] = concluded(answer(2), answer(1, 2.0), answer(0)).due()
    assert again.message_id == said.message_id


def test_the_slow_link_is_named_by_what_both_ends_saw() -> None:
    found = concluded(answer(0, _0_1=3.0), answer(1, _0_1=2.0, _1_2=1.0), answer(2, _1_2=1.1, _2_3=1.0))
    [said] = found.due()
    assert (said.body.verdict.fault, said.body.verdict.ranks) == ("link_slow", (0, 1))
    assert said.body.evidence["links"] == ["0>1"]
    found.settled(said.message_id)
    assert found.due() == ()


def test_unfinished_ones_do_not_pile_up() -> None:
    found = Validations(max_open=3)
    for i in range(10):
        envelope = answer(0)
        assert isinstance(envelope.body, ack.ValidationResult)
        found.take(envelope, envelope.body.model_copy(update={"validation_id": f"v{i}"}))
    assert len(found._open) == 3
