"""The compute probe: a fixed matrix product, timed. Tells the speed of a device that has no work, or is suspected."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from resihp_messages import ClockConfig
from resihp_trainer.comm.streams import StreamWaits
from resihp_trainer.device import Device, pad

SIZE = 200
"""Rows and columns: 16 million operations."""
REPEATS = 3
OPERATIONS = 2.0 * SIZE**3


class Probe:
    """Of one worker. Training thread only."""

    def __init__(
        self,
        config: ClockConfig,
        device: Device,
        clock: Callable[[], float] = time.perf_counter,
        accelerator: torch.device | None = None,
        streams: StreamWaits | None = None,
    ) -> None:
        """`accelerator` and `streams`: where to compute and what times it there; None: on the host."""
        self._config, self._device, self._clock = config, device, clock
        self.accelerator, self._streams = accelerator, streams
        self._matrix: torch.Tensor | None = None

    def seconds(self, pause: Callable[[float], None]) -> float:
        """Shortest of some repetitions, in processor seconds; on a virtual clock in those of the device that this rank
        stands for.

        `pause` sleeps, shows a sign of life, and raises what an aborted epoch raises.
        """
        if self._matrix is None:
            self._matrix = torch.full((SIZE, SIZE), 0.5, device=self.accelerator)
            torch.mm(self._matrix, self._matrix)  # the first product also prepares the library
        return min(self._once(self._matrix, pause) for _ in range(REPEATS))

    def _once(self, matrix: torch.Tensor, pause: Callable[[float], None]) -> float:
        if self._streams is not None:
            end = self._streams.begin()
            found = torch.mm(matrix, matrix)
            seconds = end()
            found[0, 0].item()  # a probe may wait for its device
            return seconds()
        start, busy = self._clock(), time.thread_time()
        torch.mm(matrix, matrix)
        spent_s, busy_s = self._clock() - start, time.thread_time() - busy
        if not self._config.virtual:
            return busy_s  # of a processor that other workers may be using too
        return pad(self._device, OPERATIONS / self._config.flops_per_s, spent_s, pause, busy_s)
