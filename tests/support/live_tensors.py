"""Bytes of tensors that are alive: those that operations of this thread have made, as long as anything holds them."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveTensors(TorchDispatchMode):
    """Counts storages that are allocated inside the `with` block; `peak` since the last `reset`.

    Backward passes run in the calling thread on a CPU, so they are seen too. What C++ code allocates inside one
    operation and frees before its end is not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_iter((args, kwargs)):
            if isinstance(tensor, torch.Tensor):  # a view of it is not new
                self._see(tensor.untyped_storage(), counts=False)
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage(), counts=True)
        return out

    def reset(self) -> None:
        self.peak = self.now

    def _see(self, storage: torch.UntypedStorage, *, counts: bool) -> None:
        key, size = storage._cdata, storage.nbytes() if counts else 0
        if key in self._known:
            return

        def gone(_: object) -> None:
            del self._known[key]
            self.now -= size

        self._known[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)
