"""The colour of every device as one byte per rank: the whole vector each time, so that no lost message can leave a
wrong cell."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence

from resihp_gateway.beats import SeenBeat
from resihp_gateway.picture import speed
from resihp_store import DeviceRecord, DeviceState, JobState

UNKNOWN, STANDBY, STOPPED, RETURNING, FINISHED = 253, 254, 255, 252, 251
SILENT_S = 10.0
"""A device whose node's beat is older is shown as unknown, never as healthy."""


def health_bytes(
    devices: Sequence[DeviceRecord],
    scores: Mapping[int, float],
    beats: Mapping[int, SeenBeat],
    standby: Collection[int],
    job_state: JobState,
) -> bytes:
    """Index = rank; 0 to 100: p in percent, else one of the codes above."""
    codes = bytearray([UNKNOWN]) * (max((d.rank for d in devices), default=-1) + 1)
    running = job_state is JobState.RUNNING
    for device in devices:
        codes[device.rank] = _code(device, scores, beats, standby, running=running)
    return bytes(codes)


def _code(
    device: DeviceRecord,
    scores: Mapping[int, float],
    beats: Mapping[int, SeenBeat],
    standby: Collection[int],
    *,
    running: bool,
) -> int:
    match device.state:
        case DeviceState.LOST:
            return STOPPED
        case DeviceState.RETURNING:
            return RETURNING
        case DeviceState.FINISHED:
            return FINISHED
    if running:
        seen = beats.get(device.rank)
        if seen is None or seen.age_s > SILENT_S:
            return UNKNOWN
    if device.state is DeviceState.STANDBY or device.rank in standby:
        return STANDBY
    return round(100 * speed(device, scores.get(device.rank)))


def encoded(codes: bytes) -> str:
    return base64.b64encode(codes).decode()
