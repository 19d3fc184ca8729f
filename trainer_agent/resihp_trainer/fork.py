"""What a forked child does before it becomes a worker or a store: leave everything that belongs to its parent.

A child must not keep sockets of its siblings open: an inherited end of a link would hide the death of its owner.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from typing import NoReturn

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel SIGKILL this process when its parent ends.

    The kernel ties this to the *thread* that forked; the zygote is single-threaded, so the thread is the process. If
    the parent ended before the call, this process ends now.
    """
    if _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os._exit(1)


def close_all_but(keep: Collection[int]) -> None:
    """Close every descriptor of this process except `keep` and the three standard ones."""
    kept = {0, 1, 2, *keep}
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd not in kept:
            try:
                os.close(fd)
            except OSError:  # the listing's own descriptor is closed already
                continue


def redirect_output(log_fd: int) -> None:
    """Standard output and error go to `log_fd` line by line, standard input to nothing; crashes leave a traceback."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)
    faulthandler.enable()


def run_child(
    body: Callable[[], int | None], *, parent_pid: int, keep: Collection[int], log_fd: int | None
) -> NoReturn:
    """Never returns: prepares the process, runs `body`, and exits with what it returns (None: 0).

    An uncaught exception is printed and exits with 1. `os._exit` skips interpreter shutdown: destructors of process
    groups may block, and inherited exit handlers belong to the parent.
    """
    code = 1
    try:
        os.setpgid(0, 0)
        die_with_parent(parent_pid)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if log_fd is not None:
            redirect_output(log_fd)
        close_all_but(keep)
        code = body() or 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # process border
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
