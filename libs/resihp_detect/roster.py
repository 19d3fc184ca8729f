"""Which devices are peers, and where each stands in the arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Roster:
    """Groups of devices, in order. Arrays over it have shape (groups, devices of the largest group)."""

    devices: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, groups: Mapping[str, Sequence[str]]) -> Roster:
        """Raises ValueError for no group, an empty one, or a device in two places."""
        roster = cls(MappingProxyType({g: tuple(d) for g, d in groups.items()}))
        if not roster.devices or not all(roster.devices.values()):
            raise ValueError(f"detection needs groups with devices: {dict(roster.devices)}")
        if len(roster.places) != sum(len(d) for d in roster.devices.values()):
            raise ValueError("a device is in two groups, or twice in one")
        return roster

    @cached_property
    def groups(self) -> tuple[str, ...]:
        return tuple(self.devices)

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Devices per group."""
        return np.array([len(d) for d in self.devices.values()], dtype=np.int64)

    @cached_property
    def shape(self) -> tuple[int, int]:
        return len(self.devices), int(self.sizes.max())

    @cached_property
    def present(self) -> npt.NDArray[np.bool_]:
        """False where a group has fewer devices than the array has columns."""
        return np.arange(self.shape[1])[None, :] < self.sizes[:, None]

    @cached_property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """Device -> (group index, device index)."""
        return {name: (g, d) for g, members in enumerate(self.devices.values()) for d, name in enumerate(members)}

    def name(self, group: int, device: int) -> str:
        return self.devices[self.groups[group]][device]
