"""Lightning: `Trainer(..., callbacks=[ResiHPCallback()])`.

The compute comes from the generic hooks; the callback puts them in place, knows the step number of a resumed run, and
says what is validation.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from lightning.pytorch import Callback

from resihp_attach import attach, watch
from resihp_attach.guard import guard

VALIDATION_S = 3600.0
"""Validation may keep the job quiet for this long."""


class ResiHPCallback(Callback):  # type: ignore[misc,unused-ignore]
    """One per Trainer."""

    def __init__(self) -> None:
        attach()
        self._validation: AbstractContextManager[None] | None = None

    @guard("lightning callback")
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        attach(trainer.strategy.model)
        watch.recorder.iteration = trainer.global_step

    @guard("lightning callback")
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._validation = watch.phase("eval", VALIDATION_S)
        self._validation.__enter__()

    @guard("lightning callback")
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        phase, self._validation = self._validation, None
        if phase is not None:
            phase.__exit__(None, None, None)
