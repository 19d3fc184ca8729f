"""Waits for other ranks: `Work.wait`, and DDP's broadcast of buffers.

`Work.wait` covers synchronous `dist.*` calls, FSDP2, DeepSpeed and Megatron. DDP waits in C++: at the end of the
backward pass, which the recorder takes as its tail, and in the forward pass of a model with buffers (rotary
frequencies, BatchNorm), for those of rank 0.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from resihp_attach.guard import guard
from resihp_attach.hooks.compiled import leave_alone
from resihp_attach.watch import watch

_begins = guard("wait")(watch.recorder.wait_begins)
_ends = guard("wait")(watch.recorder.wait_ends)


def hook(distributed: ModuleType) -> None:
    """After `import torch.distributed`."""
    if distributed.is_available():
        _is_a_wait(distributed.Work, "wait")


def hook_ddp(torch: ModuleType) -> None:
    """After `import torch`."""
    ddp = torch.nn.parallel.DistributedDataParallel
    leave_alone(_begins, and_what_it_calls=True)
    if hasattr(ddp, "_sync_buffers"):
        leave_alone(_is_a_wait(ddp, "_sync_buffers"), and_what_it_calls=False)


def _is_a_wait(owner: Any, name: str) -> Any:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = _begins()
        try:
            return original(self, *args, **kwargs)
        finally:
            if begun is not None:
                _ends(begun)

    setattr(owner, name, wait)
    return wait
