"""The line to the agent: nothing raises, nothing waits, what cannot be sent is counted."""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resihp_attach import wire
from resihp_attach.client import MAX_WAITING, Client
from resihp_attach.guard import Guard


class Listener:
    """A Unix server that keeps what it reads."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.bind(str(path))
        self.sock.listen()
        self.sock.settimeout(10.0)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def read(self, count: int) -> list[dict[str, Any]]:
        line, _ = self.sock.accept()
        line.settimeout(10.0)
        with line, line.makefile("rb") as stream:
            frames = []
            while len(frames) < count and (header := stream.read(4)):
                (length,) = struct.unpack(">I", header)
                frames.append(json.loads(stream.read(length)))
            return frames


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def client(tmp_path: Path, said: list[str]) -> Iterator[Client]:
    made = Client(
        str(tmp_path / "a.sock"),
        lambda: {"type": "hello"},
        lambda: {"ops": 1},
        beat_s=0.02,
        border=Guard(said.append),
    )
    yield made
    made.close({"type": "bye"}, timeout_s=5.0)


def test_hello_frames_beats_and_bye(client: Client, tmp_path: Path) -> None:
    with Listener(tmp_path / "a.sock") as listener:
        client.put({"type": "iteration"})
        client.start()
        assert [f["type"] for f in listener.read(3)] == ["hello", "iteration", "beat"]


def test_close_sends_what_is_left(client: Client, tmp_path: Path) -> None:
    with Listener(tmp_path / "a.sock") as listener:
        client.start()
        client.put({"type": "iteration", "iteration": 7})
        client.close({"type": "bye"}, timeout_s=5.0)
        types = [f["type"] for f in listener.read(1000)]
    assert "iteration" in types
    assert types[-1] == "bye"


def test_an_agent_that_is_away_costs_frames_only(client: Client) -> None:
    client.start()
    for number in range(MAX_WAITING + 10):
        client.put({"type": "iteration", "iteration": number})
    assert client.num_dropped == 10
    begun_s = time.monotonic()
    client.close({"type": "bye"}, timeout_s=5.0)
    assert time.monotonic() - begun_s < 60.0


def test_it_comes_back(client: Client, tmp_path: Path) -> None:
    client.start()
    client.put({"type": "iteration", "iteration": 1})
    with Listener(tmp_path / "a.sock") as listener:  # only now
        assert [f["type"] for f in listener.read(2)] == ["hello", "iteration"]
        assert [f["type"] for f in listener.read(2)] == ["hello", "beat"]  # the first line was cut


def test_a_frame_that_is_no_json_is_lost_alone(client: Client, tmp_path: Path, said: list[str]) -> None:
    with Listener(tmp_path / "a.sock") as listener:
        client.put({"type": "iteration", "loss": math.inf})
        client.put({"type": "iteration", "loss": 1.0})
        client.start()
        assert [f.get("loss") for f in listener.read(2)] == [None, 1.0]
    assert client.num_dropped == 1
    assert "frame" in said[0]


def test_a_forked_child_is_silent(client: Client) -> None:
    client._pid = os.getpid() + 1  # as a child sees it
    client.put({"type": "iteration"})
    assert not client._queue


def test_a_path_that_is_too_long_for_an_address(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        accept_one(server, folder)


def accept_one(server: socket.socket, folder: Path) -> None:
    fd = os.open(folder, os.O_PATH)
    server.bind(f"/proc/self/fd/{fd}/a.sock")
    os.close(fd)
    server.listen()
    with wire.connect(str(folder / "a.sock"), 5.0) as line:
        line.sendall(wire.encode({"type": "beat"}))
        accepted, _ = server.accept()
        with accepted:
            assert accepted.recv(64)[4:] == b'{"type":"beat"}'
