"""Megatron-core: its schedules call the globals `forward_step` and `backward_step`, once per micro-batch.

Replacing the two gives compute per micro-batch in all three schedules; transfers between stages pass through
`Work.wait`. Megatron's own timers are not used: they synchronise the device, and count tensor-parallel waits as
compute.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from resihp_attach import lengths
from resihp_attach.guard import guard
from resihp_attach.watch import watch

_recorder = watch.recorder
_forward_begins = guard("megatron forward")(_recorder.forward_begins)
_forward_ends = guard("megatron forward")(_recorder.forward_ends)
_backward_begins = guard("megatron backward")(_recorder.backward_begins)
_backward_ends = guard("megatron backward")(_recorder.backward_ends)


class _Noted:
    """A data iterator whose newest batch tells what the micro-batch holds."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __iter__(self) -> _Noted:
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self._note(batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    @guard("megatron lengths")
    def _note(self, batch: Any) -> None:
        work = lengths.of_batch(batch) if hasattr(batch, "get") else None
        if work is not None:
            _recorder.replace_newest(work)


def hook(schedules: ModuleType) -> None:
    """After the import of `megatron.core.pipeline_parallel.schedules`."""
    forward, backward = schedules.forward_step, schedules.backward_step

    @functools.wraps(forward)
    def forward_step(forward_step_func: Any, data_iterator: Any, *args: Any, **kwargs: Any) -> Any:
        noted = _Noted(data_iterator) if hasattr(data_iterator, "__next__") else data_iterator
        _forward_begins()
        try:
            return forward(forward_step_func, noted, *args, **kwargs)
        finally:
            _forward_ends()

    @functools.wraps(backward)
    def backward_step(*args: Any, **kwargs: Any) -> Any:
        _backward_begins()
        try:
            return backward(*args, **kwargs)
        finally:
            _backward_ends()

    vars(schedules).update(forward_step=forward_step, backward_step=backward_step)
