"""What outlives a device level: into the next epoch, with other groups, and into another process."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from resihp_detect.device_memory import DeviceMemory
from resihp_detect.state import pack, unpack

if TYPE_CHECKING:
    from resihp_detect.device_level import DeviceLevel

VERSION = 3
"""Of snapshots."""
_PARTS = ("normal", "learning", "common", "cusum", "settling")
_ARRAYS = ("skip", "last", "told", "suspected")


def memory(of: DeviceLevel) -> dict[str, DeviceMemory]:
    """What is known about every device."""
    found = {}
    for name, (g, d) in of.roster.places.items():
        slow = bool(of.cusum.slow[g, d])
        found[name] = DeviceMemory(
            float(of.normal.offset[g, d]),
            float(of.normal.anchor[g, d]),
            int(of.cusum.onset[g, d]) if slow else None,
            of.cusum.severity(g, d)[0] if slow else 0.0,
        )
    return found


def inherit(
    new: DeviceLevel,
    old: DeviceLevel,
    scale: Mapping[str, tuple[str, float]],
    known: Mapping[str, DeviceMemory],
    moved: Collection[str],
) -> None:
    """Fill `new`, which has judged nothing yet; arguments as in `DeviceLevel.successor`. Raises ValueError for an
    unknown group."""
    for device in moved:
        new.settling.begin(*new.roster.places[device])
    for name, (old_name, factor) in scale.items():
        if old_name not in old.roster.groups or name not in new.roster.groups:
            raise ValueError(f"no healthy time of {old_name!r} for {name!r}")
        _pass_on(old, old.roster.groups.index(old_name), new, new.roster.groups.index(name), factor)
    for device, remembered in {**known, **memory(old)}.items():
        if device in new.roster.places:
            g, d = new.roster.places[device]
            new.normal.offset[g, d], new.normal.anchor[g, d] = remembered.offset, remembered.anchor
            if remembered.slow_since is not None:
                new.cusum.declare(g, d, remembered.slow_since, remembered.level)


def _pass_on(old: DeviceLevel, o: int, new: DeviceLevel, g: int, factor: float) -> None:
    """Group g goes on where group o is: with its healthy time, or in the middle of learning it."""
    if old.normal.fits[o] is not None:
        old.normal.pass_on(o, new.normal, g, factor)
        new.told[g] = old.told[o]
    elif factor == 1.0 and not new.settling.moved[g].any():
        old.learning.pass_on(o, new.learning, g)


def snapshot(of: DeviceLevel) -> dict[str, Any]:
    """Everything that `restore` needs, as values that MessagePack can carry."""
    return {
        "version": VERSION,
        "groups": {g: list(d) for g, d in of.roster.devices.items()},
        **{name: getattr(of, name).snapshot() for name in _PARTS},
        **{name: pack(getattr(of, name)) for name in _ARRAYS},
    }


def restore(into: DeviceLevel, state: Mapping[str, Any]) -> None:
    """Raises ValueError if the snapshot is of another version or of other groups."""
    groups = {g: tuple(d) for g, d in state["groups"].items()}
    if state["version"] != VERSION or groups != dict(into.roster.devices):
        raise ValueError(f"snapshot of version {state['version']} and groups {list(groups)} does not fit")
    arrays = {name: unpack(state[name], getattr(into, name)) for name in _ARRAYS}
    for name in _PARTS:
        getattr(into, name).restore(state[name])
    for name, array in arrays.items():
        setattr(into, name, array)
