"""Virtual links: on the virtual clock a pipeline transfer counts as long as its bytes take on a nominal link.

A healthy transfer is the host's own, and only counted. A link that is to be slow holds the receiver up for the rest of
its time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from resihp_messages import ClockConfig
from resihp_plan import CostModel, ModelSpec, edge_group_name
from resihp_trainer.device import Device

_SLICE_S = 0.02
"""Longest sleep without a sign of life and without a look at aborts."""


@dataclass
class LinkSpeeds:
    """How fast this rank's links are, relative to healthy. Training thread only."""

    _of: dict[int, Device] = field(default_factory=dict)

    def set_speed(self, peer: int, p: float, for_s: float = 0.0) -> None:
        """From now on, or for `for_s` seconds if that is above 0. Raises ValueError unless 0 < p <= 1."""
        self._of.setdefault(peer, Device()).set_speed(p, for_s)

    def p(self, peer: int) -> float:
        return self._of[peer].p if peer in self._of else 1.0


@dataclass
class VirtualLinks:
    """Times what one rank receives in one epoch."""

    speeds: LinkSpeeds
    rank: int
    latency_s: float
    bytes_per_s: float
    pause: Callable[[float], None]
    """Sleeps, shows a sign of life, raises what an aborted epoch raises."""
    _seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, config: ClockConfig, speeds: LinkSpeeds, model: ModelSpec, rank: int, pause: Callable[[float], None]
    ) -> VirtualLinks | None:
        """None if the job's clock is real: there nobody knows when the sender began."""
        if not config.virtual:
            return None
        cost = CostModel.for_model(model)
        return cls(speeds, rank, cost.transfer_latency_s, cost.bytes_per_s, pause)

    def arrived(self, sender: int, size_bytes: int, *, forward: bool) -> None:
        """A transfer from `sender` is here; wait for the rest of its time. Both directions are one edge."""
        ends = (sender, self.rank) if forward else (self.rank, sender)
        name = edge_group_name(*ends, forward=True)
        healthy_s = self.latency_s + size_bytes / self.bytes_per_s
        seconds = healthy_s / self.speeds.p(sender)
        left_s = seconds - healthy_s
        while left_s > 0:
            self.pause(min(left_s, _SLICE_S))
            left_s -= _SLICE_S
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """Seconds of the transfers since the last call, by the name of their edge's forward group."""
        taken, self._seconds = self._seconds, {}
        return taken
