"""DeepSpeed: the engine's forward is a micro-batch; backward, step and waits are seen by the generic hooks."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from resihp_attach.hooks.forward import begins, ends


def hook(module: ModuleType) -> None:
    """After the import of `deepspeed.runtime.engine`."""
    engine = module.DeepSpeedEngine
    original = engine.forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        begins(args, kwargs, getattr(self, "module", None))
        try:
            return original(self, *args, **kwargs)
        finally:
            ends()

    engine.forward = forward
