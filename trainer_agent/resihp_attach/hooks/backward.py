"""Backward passes: `torch.autograd.backward`, which `Tensor.backward` calls too.

The engine calls what is queued during a pass once its last gradient is there, in the order of queueing. DDP and FSDP2
queue the functions in which they wait for their peers; ours is queued as the pass begins, so it comes before them and
marks where compute ends: one call per pass, however many parameters there are.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from resihp_attach.guard import guard
from resihp_attach.watch import watch

_begins = guard("backward pass")(watch.recorder.backward_begins)
_ends = guard("backward pass")(watch.recorder.backward_ends)
_gradients_done = guard("gradients")(watch.recorder.gradients_done)


def hook(torch: ModuleType) -> None:
    """After `import torch`."""
    original = torch.autograd.backward
    queue = torch.autograd.Variable._execution_engine.queue_callback

    @guard("gradients")
    def begun(gradient: Any) -> None:
        queue(_gradients_done)

    @guard("gradients")
    def at_begin(tensors: Any = None, *_: Any, **__: Any) -> Any:
        """`begun` is called with the first gradient of the pass. Returns the handle that takes it back."""
        roots = tensors if isinstance(tensors, (tuple, list)) else (tensors,)
        root = next((r for r in roots if getattr(r, "requires_grad", False)), None)
        return None if root is None else root.register_hook(begun)

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        handle = at_begin(*args, **kwargs) if _begins() else None
        try:
            return original(*args, **kwargs)
        finally:
            if handle is not None:
                handle.remove()
            _ends()

    torch.autograd.backward = backward
