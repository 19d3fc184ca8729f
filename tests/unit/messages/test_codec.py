"""Every input has a defined answer: a valid envelope or `MalformedMessage`."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from resihp_messages import MAX_MESSAGE_BYTES, Envelope, MalformedMessage, decode, encode, pack, unpack
from resihp_messages.event import NodeLeft, Verdict, WorkerExited, WorkerLost
from support.golden import golden_envelope
from support.samples import BODIES

VALID = [encode(golden_envelope(body)) for body in BODIES]
NUMPY_INTS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32]
NUMPY_FLOATS = [np.float16, np.float32, np.float64]
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


def decode_or_malformed(raw: bytes) -> None:
    try:
        envelope = decode(raw)
    except MalformedMessage:
        return
    assert decode(encode(envelope)) == envelope


def exited(**changes: Any) -> WorkerExited:
    values: dict[str, Any] = {
        "node": "n0",
        "rank": 3,
        "pid": 1,
        "exit_code": -9,
        "iteration": 4,
        "detect_s": 0.5,
        **changes,
    }
    return WorkerExited(**values)


def lost(evidence: dict[str, Any]) -> WorkerLost:
    verdict = Verdict(fault="worker_lost", ranks=(3,), node="n0", p=0.0, confidence=1.0)
    return WorkerLost(evidence=evidence, verdict=verdict, advice="")


def there_and_back(body: Any) -> Any:
    return decode(encode(Envelope.of(body, job="demo", source="s", incarnation="i"))).body


# --- valid values -----------------------------------------------------------------------------------------------


@given(value=st.integers(0, 127), kind=st.sampled_from(NUMPY_INTS))
@settings(deadline=None)
def test_numpy_integers_become_integers(value: int, kind: Any) -> None:
    body = there_and_back(exited(rank=kind(value), exit_code=kind(value)))
    assert (body.rank, body.exit_code) == (value, value)
    assert type(body.rank) is int


@given(value=st.floats(0, 1000, width=16), kind=st.sampled_from(NUMPY_FLOATS))
@settings(deadline=None)
def test_numpy_floats_become_floats(value: float, kind: Any) -> None:
    body = there_and_back(exited(detect_s=kind(value)))
    assert body.detect_s == value
    assert type(body.detect_s) is float


@given(values=st.lists(st.floats(-1e6, 1e6, width=32), max_size=5))
@settings(deadline=None)
def test_numpy_arrays_in_evidence_become_lists(values: list[float]) -> None:
    body = there_and_back(lost({"series": np.array(values, dtype=np.float32), "n": np.int64(len(values))}))
    assert body.evidence == {"series": values, "n": len(values)}


@given(value=ANYTHING)
@settings(deadline=None)
def test_plain_data_survives_packing(value: Any) -> None:
    assert repr(unpack(pack(value))) == repr(value)  # repr: NaN is not equal to itself


def test_unknown_fields_are_ignored() -> None:
    """An added optional field keeps the version."""
    data = unpack(VALID[0])
    data["new_header"] = 1
    data["body"]["new_field"] = [1, 2]
    assert decode(pack(data)) == decode(VALID[0])


def test_a_given_message_id_is_kept_and_a_missing_one_is_fresh() -> None:
    one = Envelope.of(NodeLeft(node="a"), job="demo", source="s", incarnation="i", message_id="m1")
    two, three = (Envelope.of(NodeLeft(node="a"), job="demo", source="s", incarnation="i") for _ in range(2))
    assert one.message_id == "m1"
    assert two.message_id != three.message_id


# --- refused when built -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan"), np.float64("inf"), -1.0, "x"])
def test_not_finite_or_negative_durations_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        exited(detect_s=value)


@pytest.mark.parametrize("value", [math.nan, np.float32("inf"), [1.0, [math.nan]], {"a": math.inf}, np.array([np.nan])])
def test_not_finite_evidence_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="not a finite number"):
        lost({"value": value})


@pytest.mark.parametrize("value", [-1, 2**53, 2**64, 1_000_000, 1.5, None, "a"])
def test_ranks_out_of_range_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        exited(rank=value)


@pytest.mark.parametrize("value", ["", "a.b", "a b", "a*", ">", "a\n", "ä", "x" * 65])
def test_names_that_are_no_subject_token_are_refused(value: str) -> None:
    with pytest.raises(ValidationError):
        NodeLeft(node=value)
    with pytest.raises(ValidationError):
        Envelope.of(NodeLeft(node="a"), job=value, source="s", incarnation="i")


def test_messages_are_immutable() -> None:
    with pytest.raises(ValidationError):
        exited().rank = 4  # type: ignore[misc]


# --- refused when packed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, object(), {1, 2}, 1j, "\ud800", {"a": {"b": 2**64}}])
def test_what_has_no_place_on_the_wire(value: Any) -> None:
    with pytest.raises(MalformedMessage, match="cannot encode"):
        pack(value)


def test_oversized_output() -> None:
    with pytest.raises(MalformedMessage, match="exceeds"):
        pack(b"x" * MAX_MESSAGE_BYTES)


# --- refused when read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", VALID, ids=[body.schema_name for body in BODIES])
def test_truncated_and_doubled_input(raw: bytes) -> None:
    for end in range(0, len(raw), max(1, len(raw) // 50)):
        with pytest.raises(MalformedMessage):
            decode(raw[:end])
    with pytest.raises(MalformedMessage):
        decode(raw + raw)
    with pytest.raises(MalformedMessage):
        decode(raw + b"\x00")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not MessagePack"),
        (b"\xc1", "not MessagePack"),
        (b"\x00" * (MAX_MESSAGE_BYTES + 1), "exceeds"),
        (msgpack.packb(5), "expected a map"),
        (msgpack.packb([1]), "expected a map"),
        (msgpack.packb({}), "unknown schema None"),
        (msgpack.packb({1: 2}), "not MessagePack"),
        (msgpack.packb({"schema": ["x"]}), "unknown schema"),
        (msgpack.packb({"schema": "Nonsense.v9", "body": {}}), "unknown schema 'Nonsense.v9'"),
        (msgpack.packb({"schema": "NodeLeft.v1"}), "NodeLeft"),
        (msgpack.packb({"schema": "NodeLeft.v1", "body": {"node": "a"}}), "job"),
        (msgpack.packb({"schema": "NodeLeft.v1", "body": {"node": 5}}), "node"),
        (b"\xdd\xff\xff\xff\xff", "not MessagePack"),
        (b"\xa2\xff\xfe", "not MessagePack"),
        (b"\x91" * 2000 + b"\xc0", "not MessagePack"),
        (msgpack.packb(msgpack.ExtType(4, b"x")), "expected a map"),
    ],
)
def test_broken_input_is_told_apart(raw: bytes, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        decode(raw)


@pytest.mark.parametrize("depth", [40, 200, 400])
def test_deep_nesting_is_refused_and_never_overflows(depth: int) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = {"a": deep}
    with pytest.raises(ValidationError, match="nested deeper"):
        lost({"value": deep})
    data = unpack(encode(Envelope.of(lost({}), job="demo", source="s", incarnation="i")))
    data["body"]["evidence"] = deep
    with pytest.raises(MalformedMessage):
        decode(msgpack.packb(data))


@pytest.mark.parametrize("field", ["message_id", "job", "source", "incarnation", "occurred_at", "epoch", "body"])
@pytest.mark.parametrize("value", [None, 2**64 - 1, "", "a.b", math.nan, [], {}, b"\xff"])
def test_broken_header_fields(field: str, value: Any) -> None:
    data = unpack(VALID[0])
    data[field] = value
    with pytest.raises(MalformedMessage):
        decode(pack(data))


@given(raw=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
@example(raw=b"")
def test_noise_is_only_ever_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(raw)


@given(data=st.data(), raw=st.sampled_from(VALID))
@settings(max_examples=200, deadline=None)
def test_damaged_messages_are_only_ever_malformed(data: st.DataObject, raw: bytes) -> None:
    damaged = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    decode_or_malformed(bytes(damaged))


@given(data=st.data(), index=st.integers(0, len(VALID) - 1), value=ANYTHING)
@settings(max_examples=200, deadline=None)
def test_any_value_in_any_field_is_only_ever_malformed(data: st.DataObject, index: int, value: Any) -> None:
    message = unpack(VALID[index])
    part = message["body"] if data.draw(st.booleans()) and message["body"] else message
    part[data.draw(st.sampled_from(sorted(part)))] = value
    decode_or_malformed(pack(message))


@given(value=ANYTHING)
@settings(max_examples=200, deadline=None)
def test_any_plain_data_is_only_ever_malformed(value: Any) -> None:
    with pytest.raises(MalformedMessage):
        decode(pack(value))
