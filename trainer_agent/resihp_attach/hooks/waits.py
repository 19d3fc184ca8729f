"""Waits for other ranks that pass through Python: `Work.wait`.

That covers synchronous `dist.*` calls, FSDP2, DeepSpeed and Megatron. The wait of DDP's reducer is in C++; the recorder
takes it as the backward pass's tail.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from resihp_attach.guard import guard
from resihp_attach.watch import watch

_begins = guard("wait")(watch.recorder.wait_begins)
_ends = guard("wait")(watch.recorder.wait_ends)


def hook(distributed: ModuleType) -> None:
    """After `import torch.distributed`."""
    if not distributed.is_available():
        return
    original = distributed.Work.wait

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = _begins()
        try:
            return original(self, *args, **kwargs)
        finally:
            if begun is not None:
                _ends(begun)

    distributed.Work.wait = wait
