"""What detection costs: CPU and memory of 10,240 devices in one process."""

from __future__ import annotations

import time

import msgpack
import numpy as np

from benchmarks.detection.fleet import Fleet, Shape
from resihp_detect import DeviceLevel


def measure(pool: np.ndarray, rng: np.random.Generator, iterations: int) -> tuple[int, float, float, float]:
    """Devices, CPU milliseconds per judged iteration, device-records per CPU second, snapshot bytes per device."""
    fleet = Fleet(Shape(), 40, pool, rng)
    level = DeviceLevel(fleet.groups, num_directions=2)
    for i in range(1, 23):
        level.observe(i, *fleet.iteration(i, []))
    frames = [fleet.iteration(23 + i, []) for i in range(4)]
    before = time.process_time()
    for i in range(iterations):
        level.observe(23 + i, *frames[i % 4])
    spent = (time.process_time() - before) / iterations
    devices = fleet.num_groups * fleet.shape.num_peers
    return devices, 1e3 * spent, devices / spent, len(msgpack.packb(level.snapshot())) / devices
