"""Which hook belongs to which module; all of them wait for its import."""

from __future__ import annotations

import sys

from resihp_attach.hooks import backward, forward, optimizer, saving, waits
from resihp_attach.imports import AfterImport
from resihp_attach.integrations import deepspeed, megatron

_finders: list[AfterImport] = []
"""The one in `sys.meta_path`, if it is there."""


def install() -> None:
    """Idempotent. Does nothing to a process that never imports torch."""
    if _finders:
        return
    finder = AfterImport()
    _finders.append(finder)
    sys.meta_path.insert(0, finder)
    for name, patch in (
        ("torch", backward.hook),
        ("torch", optimizer.hook),
        ("torch", saving.hook),
        ("torch", forward.hook),
        ("torch", waits.hook_ddp),
        ("torch.distributed", waits.hook),
        ("torch.distributed.fsdp._fully_shard._fsdp_state", forward.hook_fsdp),
        ("deepspeed.runtime.engine", deepspeed.hook),
        ("megatron.core.pipeline_parallel.schedules", megatron.hook),
    ):
        finder.call(name, patch)
