"""A worker that only passes fault points, and says which it survived."""

from __future__ import annotations

import socket

from resihp_messages import FaultPoint, ScriptedFault
from resihp_messages.page import ProgressPage
from resihp_trainer.faults import Faults

SCRIPT = (
    ScriptedFault(kind="kill", rank=3, iteration=2, point=FaultPoint.VOTE),
    ScriptedFault(kind="freeze", rank=4, iteration=1, point=FaultPoint.GRADIENT),
)


def main(rank: int, job: str, link: socket.socket, page: ProgressPage) -> int:
    faults = Faults(SCRIPT, rank, page)
    link.recv(2)
    for iteration in (1, 2):
        for point in (FaultPoint.VOTE, FaultPoint.GRADIENT):
            for _ in range(2):  # each iteration is redone once
                faults.strike(point, iteration)
            link.sendall(f"{point} {iteration};".encode())
    return 0
