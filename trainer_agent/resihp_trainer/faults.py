"""Scripted faults: a worker kills, freezes or (on the virtual clock) slows itself at a named point of an iteration."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Protocol

from resihp_messages import FaultPoint, ScriptedFault
from resihp_trainer.links import LinkSpeeds

SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}


class FaultMark(Protocol):
    """Where the exact time of a fault is left for the agent (`resihp_messages.page.ProgressPage`)."""

    def mark_fault(self) -> None: ...


class Slowable(Protocol):
    """What a slow fault slows (`device.Device`)."""

    def set_speed(self, p: float, for_s: float = 0.0) -> None: ...


class Faults:
    """The faults that a job file scripts for one rank. Each strikes once, also if its iteration is redone.

    `iteration` of a strike is the one that is being made, or at the points of a change the newest committed one. At
    `gradient`, `ready` and the votes the engine calls `strike` after it launched the collective and before it waits:
    then the victim's part may or may not have left, as in a real death.
    """

    def __init__(
        self,
        script: Sequence[ScriptedFault],
        rank: int,
        page: FaultMark,
        device: Slowable | None = None,
        links: LinkSpeeds | None = None,
        *,
        start: int = 0,
    ) -> None:
        """`start`: which start of the rank this process is. A replacement does not die of its predecessor's faults. A
        slow link strikes at both of its ends."""
        self._page = page
        self._rank, self._device, self._links = rank, device, links
        self._waiting = [fault for fault in script if rank in fault.victims and fault.start == start]

    def due(self, point: FaultPoint, iteration: int) -> ScriptedFault | None:
        """The fault that `strike` would execute now."""
        for fault in self._waiting:
            reached = fault.iteration <= iteration if point.of_change else fault.iteration == iteration
            if fault.point is point and reached:
                return fault
        return None

    def strike(self, point: FaultPoint, iteration: int) -> None:
        """Execute the fault scripted for this point, if any. After `kill` nothing follows; after `freeze` the process
        stands still until it is killed (or continued, then it goes on)."""
        fault = self.due(point, iteration)
        if fault is None:
            return
        self._waiting.remove(fault)
        if fault.kind == "slow":
            assert self._device is not None  # workers have one
            self._device.set_speed(fault.factor, fault.for_s)
            return
        if fault.kind == "slow_link":
            assert self._links is not None  # workers have them
            (peer,) = (victim for victim in fault.victims if victim != self._rank)
            self._links.set_speed(peer, fault.factor, fault.for_s)
            return
        self._page.mark_fault()  # only of what an agent has to notice: it dates the detection
        os.kill(os.getpid(), SIGNALS[fault.kind])
