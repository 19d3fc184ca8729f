"""Which sockets a process group owns, and how to break them.

gloo has no abort: its own `abort` and `shutdown` free nobody. What frees a blocked operation is shutting down the TCP
connections of its group, which gloo does not expose. They are found as the difference of `/proc/self/fd` around the
construction, because gloo connects the full mesh of a group in its constructor. Sockets are kept as descriptor and
inode: a descriptor number may be reused after a group is dropped, an inode number tells.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

Sockets = Mapping[int, int]
"""Descriptor -> inode."""

_PREFIX = "socket:["


def open_sockets() -> dict[int, int]:
    """Every socket of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # closed meanwhile by another thread (or the descriptor of the listing itself)
            continue
        if target.startswith(_PREFIX):
            found[int(name)] = int(target[len(_PREFIX) : -1])
    return found


def opened_since(before: Sockets) -> dict[int, int]:
    """Sockets that are open now and were not in `before`."""
    return {fd: inode for fd, inode in open_sockets().items() if before.get(fd) != inode}


def shut(sockets: Sockets) -> int:
    """Shut down both directions of every connected TCP socket; any thread. Returns how many were shut.

    Closed or reused descriptors, listeners (they serve all groups) and sockets of other families are left alone. The
    descriptor is duplicated first, so that it cannot be reused between the check of its inode and the shutdown.
    """
    return sum(_shut_one(fd, inode) for fd, inode in list(sockets.items()))


def _shut_one(fd: int, inode: int) -> bool:
    try:
        duplicate = os.dup(fd)
    except OSError:
        return False
    try:
        same = os.fstat(duplicate).st_ino == inode
    except OSError:
        same = False
    if not same:
        os.close(duplicate)
        return False
    with socket.socket(fileno=duplicate) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # a listener, or the peer has gone already
            return False
    return True
