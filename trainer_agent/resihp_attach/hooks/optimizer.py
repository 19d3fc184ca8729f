"""Step boundaries: every torch optimizer calls the global post hooks. The first optimizer that steps counts."""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import Any

from resihp_attach.guard import guard
from resihp_attach.watch import watch


class _First:
    """A second optimizer (of a discriminator, say) steps in the same iteration."""

    def __init__(self) -> None:
        self._reference: weakref.ref[Any] | None = None

    def is_it(self, optimizer: Any) -> bool:
        known = self._reference() if self._reference is not None else None
        if known is None:
            self._reference = weakref.ref(optimizer)
        return known is None or known is optimizer


def hook(torch: ModuleType) -> None:
    """After `import torch`."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    first = _First()

    @guard("optimizer step")
    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if first.is_it(optimizer):
            watch.step()

    register_optimizer_step_post_hook(stepped)
