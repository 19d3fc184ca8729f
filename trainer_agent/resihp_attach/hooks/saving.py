"""`torch.save` on the training thread is a checkpoint: announced work, so that its iteration is not called slow."""

from __future__ import annotations

import functools
import threading
from types import ModuleType
from typing import Any

from resihp_attach.watch import watch

MAX_S = 3600.0
"""A checkpoint may keep the job quiet for this long."""


def hook(torch: ModuleType) -> None:
    """After `import torch`."""
    original = torch.save

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return original(*args, **kwargs)
        with watch.phase("checkpoint", MAX_S):
            return original(*args, **kwargs)

    vars(torch)["save"] = save
