"""The client has no package of ours: these tests keep what it builds equal to what an agent accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from resihp_attach import place, stuck, watch, wire
from resihp_attach.lengths import Work
from resihp_attach.recorder import Recorder
from resihp_messages import MalformedMessage
from resihp_messages.attach import (
    MAX_FRAME_BYTES,
    AttachBeat,
    AttachBye,
    AttachHello,
    AttachIteration,
    LauncherBye,
    LauncherHello,
    parse_attach,
)

ENVIRONMENT = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", place.JOB: "j"}


def over(frame: dict[str, Any]) -> Any:
    return parse_attach(wire.encode(frame)[wire.HEADER.size :])


def test_hello() -> None:
    watched = type(watch)()
    watched.place = place.read_place({**ENVIRONMENT, place.AXES: "pp=2,dp=2"})
    hello = over(watched._hello())
    assert isinstance(hello, AttachHello)
    assert (hello.rank, hello.local_world_size, list(hello.axes.items())) == (1, 2, [("pp", 2), ("dp", 2)])


def test_beat() -> None:
    watched = type(watch)()
    watched.place = place.read_place({**ENVIRONMENT, place.HANG_S: "0.000001"})  # at once: it also looks at itself
    beat = over({"type": "beat", "dropped": 3, **watched._state()})
    assert isinstance(beat, AttachBeat)
    assert beat.dropped == 3
    assert "test_frames.py" in beat.where


def test_iteration() -> None:
    frames: list[dict[str, Any]] = []
    times = iter(range(100))
    recorder = Recorder(lambda: float(next(times)), frames.append)
    recorder.forward_begins(Work(4, 16, "shape"))
    recorder.forward_ends()
    recorder.backward_begins()
    recorder.backward_ends()
    recorder.step_done()
    assert isinstance(over(frames[0]), AttachIteration)


def test_collective() -> None:
    dump = {
        "entries": [
            {"record_id": 1, "profiling_name": "gloo:all_reduce", "collective_seq_id": 8, "retired": True},
            {
                "record_id": 2,
                "profiling_name": "gloo:all_reduce",
                "collective_seq_id": 9,
                "process_group": ["0", "default_pg"],
                "input_sizes": [[72]],
                "retired": False,
            },
        ]
    }
    beat = over({"type": "beat", "iteration": 1, "ops": 1, "quiet_s": 9.0, "collective": stuck.newest(dump)})
    assert beat.collective.model_dump() == {
        "op": "gloo:all_reduce", "seq": 9, "group": "default_pg", "sizes": "[[72]]", "done": False
    }  # fmt: skip
    assert stuck.newest({"entries": []}) is None


def test_the_other_frames() -> None:
    assert isinstance(over({"type": "bye", "iteration": 3, "error": "ValueError: x"}), AttachBye)
    assert isinstance(over({"type": "launcher", "job": "j"}), LauncherHello)
    assert isinstance(over({"type": "launcher_bye", "exit_code": -9}), LauncherBye)


@pytest.mark.parametrize(
    ("frame", "rule"),
    [
        ({"type": "unknown"}, "unknown"),
        ({"type": "hello", "job": "a b", "rank": 0}, "job"),
        ({"type": "bye", "iteration": -1}, "iteration"),
        (
            {"type": "hello", "job": "j", "rank": 4, "world_size": 4, "local_rank": 0, "local_world_size": 1},
            "rank 4 is not below world_size 4",
        ),
        (
            {
                "type": "hello", "job": "j", "rank": 0, "world_size": 4, "local_rank": 0, "local_world_size": 1,
                "axes": {"dp": 3},
            },
            "hold 3 ranks",
        ),
    ],
)  # fmt: skip
def test_broken_frames(frame: dict[str, Any], rule: str) -> None:
    with pytest.raises(MalformedMessage, match=rule):
        over(frame)


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 100_000, b"nonsense", b"\xff"])
def test_broken_bytes(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_attach(raw)


def test_sizes() -> None:
    assert len(json.dumps({"type": "iteration", "unit_tokens": [10**6] * 10_000})) <= MAX_FRAME_BYTES
