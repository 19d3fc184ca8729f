"""What the kernel tells about a process that is not our child. Linux."""

from __future__ import annotations

import contextlib
import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")


def peer_pid(sock: socket.socket) -> int:
    """Process at the other end of a Unix socket, numbered as this process sees it."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[0])


def exit_code(pid: int) -> int | None:
    """How a process ended, as in `subprocess`, while its parent has not collected it yet; else None.

    The last field of /proc/PID/stat is the wait status. It reads 0 where the kernel hides it, so 0 says nothing.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] not in (b"Z", b"X") or len(fields) < 50 or not int(fields[-1]):
        return None
    return os.waitstatus_to_exitcode(int(fields[-1]))


def listening_socket(path: str) -> socket.socket:
    """A Unix socket that only this user can connect to. A longer path than an address holds is bound through its open
    folder. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder, name = os.path.split(path)
    fd = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY)
    before = os.umask(0o177)
    try:
        sock.bind(f"/proc/self/fd/{fd}/{name}")
        sock.listen(128)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
        os.close(fd)
    sock.setblocking(False)
    return sock
