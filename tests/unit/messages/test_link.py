"""Frames between an agent and its workers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_messages import MAX_MESSAGE_BYTES, MalformedMessage, link, pack
from resihp_messages.ids import Wire
from support.samples import DOWN, UP


@pytest.mark.parametrize("message", DOWN, ids=lambda m: type(m).__name__)
def test_down_frames(message: Wire) -> None:
    raw = link.frame(message)
    assert link.payload_length(raw[:4]) == len(raw) - 4
    assert link.parse_down(raw[4:]) == message
    with pytest.raises(MalformedMessage):
        link.parse_up(raw[4:])


@pytest.mark.parametrize("message", UP, ids=lambda m: type(m).__name__)
def test_up_frames(message: Wire) -> None:
    raw = link.frame(message)
    assert link.parse_up(raw[4:]) == message
    with pytest.raises(MalformedMessage):
        link.parse_down(raw[4:])


def test_what_is_not_checked_here_is_checked_where_it_arrives() -> None:
    report = next(m for m in UP if isinstance(m, link.IterationCommitted))
    given = {name: getattr(report, name) for name in report.model_fields_set}
    assert link.parse_up(link.frame(link.unchecked(link.IterationCommitted, **given))[4:]) == report
    for wrong in ({"step_s": float("nan")}, {"tokens": -1}, {"loss": float("inf")}):
        raw = link.frame(link.unchecked(link.IterationCommitted, **{**given, **wrong}))
        with pytest.raises(MalformedMessage, match=next(iter(wrong))):
            link.parse_up(raw[4:])


def test_samples_cover_all_frames() -> None:
    frames = {
        c for c in vars(link).values() if isinstance(c, type) and issubclass(c, Wire) and "type" in c.model_fields
    }
    assert {type(m) for m in (*DOWN, *UP)} == frames


def test_a_header_that_announces_too_much() -> None:
    with pytest.raises(MalformedMessage, match="exceeds"):
        link.payload_length((MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))


def test_an_oversized_frame_is_not_sent() -> None:
    plan = {"x": "y" * MAX_MESSAGE_BYTES}
    message = link.InstallPlan(
        mode="initial", epoch=1, reconfiguration_id="r", plan=plan, digest="0" * 16, store_address="h:1"
    )
    with pytest.raises(MalformedMessage, match="exceeds"):
        link.frame(message)


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", pack(1), pack({}), pack({"type": "nonsense"}), pack({"type": ["hello"]})]
)
def test_broken_frames(raw: bytes) -> None:
    for parse in (link.parse_down, link.parse_up):
        with pytest.raises(MalformedMessage):
            parse(raw)


@given(raw=st.binary(max_size=100))
@settings(deadline=None)
def test_noise_is_only_ever_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        link.parse_up(raw)
