"""Backward passes: `torch.autograd.backward`, which `Tensor.backward` calls too."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from resihp_attach.guard import guard
from resihp_attach.watch import watch

_begins = guard("backward pass")(watch.recorder.backward_begins)
_ends = guard("backward pass")(watch.recorder.backward_ends)


def hook(torch: ModuleType) -> None:
    """After `import torch`."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        _begins()
        try:
            return original(*args, **kwargs)
        finally:
            _ends()

    torch.autograd.backward = backward
