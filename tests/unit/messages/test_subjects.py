"""Subjects and streams."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_messages import STREAMS, Kind, parse, pattern, stream_of, subject

TOKENS = st.from_regex(r"\A[A-Za-z0-9_-]{1,64}\Z")


@given(job=TOKENS, kind=st.sampled_from(Kind), detail=TOKENS)
@settings(deadline=None)
def test_parse_is_the_inverse_of_subject(job: str, kind: Kind, detail: str) -> None:
    parsed = parse(subject(job, kind, detail))
    assert (parsed.job, parsed.kind, parsed.detail) == (job, kind, detail)


@pytest.mark.parametrize("part", ["", "a.b", "*", ">", "a b", "a\tb", "a\r\nb"])
def test_parts_that_are_no_token(part: str) -> None:
    with pytest.raises(ValueError, match="not a subject token"):
        subject(part, Kind.EVENT, "x")
    with pytest.raises(ValueError, match="not a subject token"):
        subject("demo", Kind.EVENT, part)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "resihp.v1",
        "resihp.v1.",
        "resihp.v1.a.event",
        "resihp.v1.a.event.b.c",
        "resihp.v2.a.event.b",
        "resihp.v1.a.nonsense.b",
        "x.resihp.v1.a.event.b",
        "resihp.v1..event.b",
        "_INBOX.a.b",
    ],
)
def test_foreign_subjects(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_patterns() -> None:
    assert pattern() == "resihp.v1.*.*.>"
    assert pattern("demo", Kind.EVENT) == "resihp.v1.demo.event.>"
    assert pattern(kind=Kind.COMMAND, detail="n0") == "resihp.v1.*.command.n0"


def test_streams_hold_exactly_the_stored_kinds() -> None:
    assert {spec.kind for spec in STREAMS} == set(Kind) - {Kind.BEAT, Kind.REQUEST, Kind.REPLY}
    for spec in STREAMS:
        assert stream_of(spec.kind) is spec
    for kind in (Kind.BEAT, Kind.REQUEST, Kind.REPLY):
        with pytest.raises(ValueError, match="not stored"):
            stream_of(kind)
