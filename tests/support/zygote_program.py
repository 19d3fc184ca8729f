"""A worker that answers questions about itself and ends as it is told."""

from __future__ import annotations

import os
import socket
import sys
import time

from resihp_messages import FaultPoint, ScriptedFault
from resihp_messages.page import PageState, ProgressPage
from resihp_trainer.faults import Faults

SCRIPT = (
    ScriptedFault(kind="kill", rank=3, iteration=2, point=FaultPoint.VOTE),
    ScriptedFault(kind="freeze", rank=4, iteration=1, point=FaultPoint.GRADIENT),
)


def main(rank: int, job: str, link: socket.socket, page: ProgressPage) -> int | None:
    page.place(epoch=3, iteration=4, state=PageState.TRAINING)
    while order := link.recv(4096).decode():
        verb, _, argument = order.partition(" ")
        match verb:
            case "return":
                return int(argument) if argument else None
            case "exit":
                sys.exit(int(argument) if argument.isdigit() else argument)
            case "raise":
                raise RuntimeError("told to")
            case "pass":
                _pass_fault_points(rank, link, page)
                return 0
            case "helper":
                link.sendall(str(_helper()).encode())
            case "kill":
                os.kill(os.getpid(), 9)
            case _:
                link.sendall(_answer(verb, argument, rank, job, link).encode())
    return 9


def _helper() -> int:
    """A process of this one's own, as a data loader is."""
    if pid := os.fork():
        return pid
    time.sleep(600)
    os._exit(0)


def _pass_fault_points(rank: int, link: socket.socket, page: ProgressPage) -> None:
    """Two iterations, each redone once; says which points this process survived."""
    faults = Faults(SCRIPT, rank, page)
    for iteration in (1, 2):
        for point in (FaultPoint.VOTE, FaultPoint.GRADIENT):
            for _ in range(2):
                faults.strike(point, iteration)
            link.sendall(f"{point} {iteration};".encode())


def _answer(verb: str, argument: str, rank: int, job: str, link: socket.socket) -> str:
    if verb == "who":
        return f"{rank} {job}"
    if verb == "print":
        print(argument)
        return "done"
    if verb == "threads":
        return str(len(os.listdir("/proc/self/task")))
    return " ".join(sorted(_what(fd, link) for fd in range(1024) if _is_open(fd)))


def _what(fd: int, link: socket.socket) -> str:
    if fd == link.fileno():
        return "link"
    return "page" if "memfd:page" in os.readlink(f"/proc/self/fd/{fd}") else str(fd)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
