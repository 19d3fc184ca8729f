"""Devices as the planner sees them: where they are, what fits, how fast they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

Health = Mapping[int, float]
"""Rank -> p: throughput relative to the device's own healthy peak. 1 is healthy, 0 is fail-stop; missing means 1."""


@dataclass(frozen=True)
class Device:
    """One accelerator of the job."""

    rank: int
    node: str
    memory_bytes: int | None = None
    """Usable memory; None: not limited."""
    peak: float = 1.0
    """Healthy throughput relative to the device for which the cost model holds: two generations in one job differ."""


@dataclass(frozen=True)
class Cluster:
    """All devices of a job, dead or alive. Raises ValueError for a rank that occurs twice."""

    devices: tuple[Device, ...]

    def __post_init__(self) -> None:
        ranks = [d.rank for d in self.devices]
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"cluster lists a rank twice: {sorted(ranks)}")

    @classmethod
    def of(cls, num_devices: int, *, devices_per_node: int | None = None) -> Cluster:
        """Ranks 0..num_devices-1 on nodes `n0`, `n1`, ... (one node if `devices_per_node` is not given)."""
        per_node = devices_per_node or max(1, num_devices)
        return cls(tuple(Device(r, f"n{r // per_node}") for r in range(num_devices)))

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ascending."""
        return tuple(sorted(d.rank for d in self.devices))

    @cached_property
    def node_of(self) -> Mapping[int, str]:
        return {d.rank: d.node for d in self.devices}

    @cached_property
    def memory_of(self) -> Mapping[int, int]:
        """Rank -> usable bytes, only for devices with a limit."""
        return {d.rank: d.memory_bytes for d in self.devices if d.memory_bytes is not None}

    def speeds(self, health: Health) -> Health:
        """Rank -> p times peak, where either is not 1: what the cost model divides by."""
        peaks = {d.rank: d.peak for d in self.devices if d.peak != 1.0}
        return {**peaks, **{r: p * peaks.get(r, 1.0) for r, p in health.items() if p != 1.0 or r in peaks}}

    def only(self, ranks: Iterable[int]) -> Cluster:
        """The cluster without all other ranks."""
        wanted = set(ranks)
        return Cluster(tuple(d for d in self.devices if d.rank in wanted))


def speed_of(rank: int, health: Health | None) -> float:
    """p of a device that is to work. Raises ValueError if it is not above 0: such a device cannot be in a plan."""
    p = 1.0 if health is None else health.get(rank, 1.0)
    if not p > 0.0:
        raise ValueError(f"rank {rank} has p = {p}: a stopped device cannot hold a stage")
    return p
