"""Frames to the node's agent: 4 bytes big-endian length, then JSON. Standard library only.

The other end validates them (`resihp_messages.attach`); a contract test keeps the two equal. JSON and not MessagePack,
because a client inside somebody else's job must not need a package that the job does not have.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HEADER = struct.Struct(">I")
_MAX_PATH = 100
"""Of a Unix socket's address (108 in Linux, with room to spare)."""

Frame = Mapping[str, Any]


def encode(frame: Frame) -> bytes:
    """Raises ValueError for NaN and infinity, TypeError for what is not plain data."""
    raw = json.dumps(frame, allow_nan=False, separators=(",", ":")).encode()
    return HEADER.pack(len(raw)) + raw


def connect(path: str, timeout_s: float) -> socket.socket:
    """Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        if len(path) < _MAX_PATH:
            sock.connect(path)
        else:
            _connect_long(sock, Path(path))
    except OSError:
        sock.close()
        raise
    return sock


def _connect_long(sock: socket.socket, path: Path) -> None:
    """Through the open folder, since the path is too long for an address."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        sock.connect(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
