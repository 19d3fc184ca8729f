"""What ties a rank to the others: its number, its groups, its launcher."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from resihp_attach.ddp.line import Alone, Launcher, Line
from resihp_attach.place import LAUNCH_FD
from resihp_trainer.comm import Communicator, GlooCommunicator

BACKEND_TIMEOUT_S = 1800.0
"""PyTorch's own default: a rank that is merely slow is waited for. A dead one is told by the launcher."""


@dataclass(frozen=True)
class Ties:
    """Of this process."""

    rank: int
    communicator: Communicator
    launcher: Launcher


class _NoPage:
    def tick(self) -> None:
        return


def tie() -> Ties:
    """To `resihp launch`, or to nobody if this is the only process. Raises ValueError if another launcher has started
    several ranks."""
    communicator = GlooCommunicator(host="127.0.0.1", page=_NoPage(), timeout_s=BACKEND_TIMEOUT_S)
    descriptor = os.environ.get(LAUNCH_FD)
    if descriptor is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("more than one rank: resihp_attach.ddp needs `resihp launch` in place of this launcher")
    if descriptor is None:
        return Ties(0, communicator, Alone())
    line = Line(socket.socket(fileno=os.dup(int(descriptor))), communicator.abort)
    return Ties(int(os.environ["RANK"]), communicator, line)
