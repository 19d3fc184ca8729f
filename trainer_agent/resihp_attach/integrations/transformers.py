"""Hugging Face Trainer: `Trainer(..., callbacks=[ResiHPCallback()])`.

The compute comes from the generic hooks (a callback's own times would include the wait for other ranks); the callback
puts them in place and knows the step number of a resumed run, the loss and what is evaluation.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from resihp_attach import attach, watch
from resihp_attach.guard import guard


class ResiHPCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """One per Trainer."""

    def __init__(self) -> None:
        attach()

    @guard("transformers callback")
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        attach(model)
        watch.recorder.iteration = state.global_step

    @guard("transformers callback")
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            watch.loss(logs["loss"])
