"""The zygote: one process per node with torch imported, which forks workers and the store on request.

Importing torch in eight processes takes 14 s on two cores; forking eight takes well under a second, and the children
share its pages. It stays single-threaded (a fork copies one thread only) and opens no socket of its own.

Requests and replies: docs/architecture.md. A bad request is answered `{"op": "error", "request": op, "error": text}`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import mmap
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from resihp_messages import MalformedMessage, pack, unpack
from resihp_messages.page import PAGE_BYTES, ProgressPage
from resihp_trainer import store
from resihp_trainer.fork import run_child

WorkerMain = Callable[[int, str, socket.socket, ProgressPage], int | None]
"""`main(rank, job, link_socket, page)`: runs in the child; its result is the exit code."""

MAX_REQUEST_BYTES = 65536
SPAWN_DESCRIPTORS = 3
DEFAULT_WORKER = "resihp_trainer.worker:main"
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class BadRequest(ValueError):
    """A request that cannot be served; the text says why."""


class Zygote:
    """Serves one control socket until it closes; then kills its children."""

    def __init__(self, control: socket.socket, worker_main: WorkerMain) -> None:
        self._control = control
        self._worker_main = worker_main
        self._selector = selectors.DefaultSelector()
        self._pidfds: dict[int, int] = {}
        self._pid = os.getpid()

    def serve(self) -> None:
        """Returns when the control socket is closed by the other side; no child is left then."""
        self._selector.register(self._control, selectors.EVENT_READ, self._on_control)
        self._open = True
        while self._open:
            for key, _ in self._selector.select():
                key.data()
        self._kill_children()

    # --- requests -------------------------------------------------------------------------------------------------

    def _on_control(self) -> None:
        try:
            raw, fds, _, _ = socket.recv_fds(self._control, MAX_REQUEST_BYTES, SPAWN_DESCRIPTORS + 1)
        except ConnectionError:
            raw, fds = b"", []
        if not raw:
            self._open = False
            return
        op = ""
        try:
            request = unpack(raw)
            if not isinstance(request, dict):
                raise BadRequest(f"expected a map, got {type(request).__name__}")
            op = str(request.get("op"))
            self._dispatch(op, request, fds)
        except (BadRequest, MalformedMessage, OSError) as error:
            self._reply({"op": "error", "request": op, "error": str(error)})
        finally:
            for fd in fds:
                os.close(fd)

    def _dispatch(self, op: str, request: dict[str, Any], fds: Sequence[int]) -> None:
        match op:
            case "spawn":
                self._spawn(request, fds)
            case "store":
                self._start_store(request)
            case _:
                raise BadRequest(f"unknown op {op!r}")

    def _spawn(self, request: dict[str, Any], fds: Sequence[int]) -> None:
        rank, job = request.get("rank"), request.get("job")
        if not isinstance(rank, int) or not isinstance(job, str):
            raise BadRequest(f"spawn needs rank and job, got {rank!r} and {job!r}")
        if len(fds) != SPAWN_DESCRIPTORS:
            raise BadRequest(f"spawn needs {SPAWN_DESCRIPTORS} descriptors (link, page, log), got {len(fds)}")
        link_fd, page_fd, log_fd = fds

        def body() -> int | None:
            page = ProgressPage(mmap.mmap(page_fd, PAGE_BYTES))
            os.close(page_fd)
            return self._worker_main(rank, job, socket.socket(fileno=link_fd), page)

        pid = self._fork(body, keep=(link_fd, page_fd), log_fd=log_fd)
        self._reply({"op": "spawned", "rank": rank, "pid": pid})

    def _start_store(self, request: dict[str, Any]) -> None:
        host = request.get("host")
        if not isinstance(host, str):
            raise BadRequest(f"store needs host, got {host!r}")

        read_fd, write_fd = os.pipe()
        pid = self._fork(lambda: store.serve(host, write_fd), keep=(write_fd,), log_fd=None)
        os.close(write_fd)

        def on_address() -> None:
            address = os.read(read_fd, 256).decode()
            self._selector.unregister(read_fd)
            os.close(read_fd)
            if address:
                self._reply({"op": "store", "pid": pid, "address": address})
            else:
                self._reply({"op": "error", "request": "store", "error": f"no store on {host}: see the zygote's log"})

        self._selector.register(read_fd, selectors.EVENT_READ, on_address)

    # --- children -------------------------------------------------------------------------------------------------

    def _fork(self, body: Callable[[], int | None], *, keep: Sequence[int], log_fd: int | None) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            run_child(body, parent_pid=self._pid, keep=keep, log_fd=log_fd)
        # Also done by the child; whoever comes first, a group kill sent after our reply finds the group.
        with contextlib.suppress(ProcessLookupError):
            os.setpgid(pid, pid)
        pidfd = os.pidfd_open(pid)
        self._pidfds[pid] = pidfd
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._on_exit(pid))
        return pid

    def _on_exit(self, pid: int) -> None:
        pidfd = self._pidfds.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        # Its helpers (data loaders) must not outlive it, even if it left by itself because the agent is gone. Now:
        # while it is not reaped, nobody else gets its number.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        self._reply({"op": "exited", "pid": pid, "exit_code": os.waitstatus_to_exitcode(status)})

    def _kill_children(self) -> None:
        for pid in self._pidfds:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for pid, pidfd in self._pidfds.items():
            os.waitpid(pid, 0)
            os.close(pidfd)
        self._pidfds.clear()

    def _reply(self, reply: dict[str, Any]) -> None:
        try:
            self._control.send(pack(reply))
        except OSError:  # the agent is gone
            self._open = False


def load_worker(name: str) -> WorkerMain:
    """`module:function` -> the function. ValueError if there is none."""
    module_name, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no worker entry point {name!r}: {error}") from error
    main: WorkerMain = found
    return main


def warm_up() -> None:
    """Import torch and run every lazily initialised part that workers need once, without starting a thread."""
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    x = torch.ones(4, 4, requires_grad=True)
    (x @ x).sum().backward()  # type: ignore[no-untyped-call]


def require_single_thread() -> None:
    """RuntimeError if this process has a second thread: a fork would leave its locks in an unknown state."""
    num_threads = len(os.listdir("/proc/self/task"))
    if num_threads != 1:
        raise RuntimeError(f"the zygote has {num_threads} threads after its imports; it must not fork")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="python -m resihp_trainer.zygote", description=__doc__.split("\n")[0])
    parser.add_argument("--control-fd", type=int, required=True, help="our end of a Unix SOCK_SEQPACKET pair")
    parser.add_argument("--worker", default=DEFAULT_WORKER, help="entry point of workers (default: %(default)s)")
    options = parser.parse_args(arguments)
    control = socket.socket(fileno=options.control_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the agent decides
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = "1"  # before the imports that read them
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no stack trace for each connection that a peer's death ends
    worker_main = load_worker(options.worker)
    warm_up()
    require_single_thread()
    gc.collect()
    gc.freeze()  # the collector must not touch, and so copy, the shared pages
    Zygote(control, worker_main).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
