"""Whether a loss allows unequal parts of the global batch. Asked before any row is moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

RELATIVE = 1e-9
"""Gradients of two splits must agree to this in float64."""


class LossDependsOnSplit(ValueError):
    """Moving rows between ranks would change the gradient; the text says by how much."""


def check_loss(gradient: Callable[[Sequence[int], int], Sequence[Any]], rows: Sequence[int], *, world: int = 2) -> None:
    """Compare the even split of `rows` with an uneven one, in this process.

    `gradient(part, num_tokens)`: gradients (tensors) of the loss that a rank would compute on these rows, knowing the
    tokens of the global batch only by what the training loop gives it (`num_tokens` is the number of rows of all
    ranks). As DDP and FSDP do, the gradients of the ranks are averaged. Raises `LossDependsOnSplit`.
    """
    if len(rows) < 2 * world or len(rows) % world:
        raise ValueError(f"{len(rows)} rows: at least {2 * world}, and a multiple of {world}, are needed")
    even = len(rows) // world
    uneven = [even + even // 2, *[even] * (world - 2), even - even // 2]
    a, b = _averaged(gradient, rows, [even] * world), _averaged(gradient, rows, uneven)
    error = max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))
    size = max(float(x.abs().max()) for x in a)
    if error > RELATIVE * max(size, 1e-30):
        raise LossDependsOnSplit(
            f"gradients of an uneven split differ by {error / max(size, 1e-30):.1e} of their size: the loss is not a "
            "sum over tokens divided by the tokens of the global batch (a mean over the rank's own tokens, probably)"
        )


def _averaged(
    gradient: Callable[[Sequence[int], int], Sequence[Any]], rows: Sequence[int], parts: Sequence[int]
) -> list[Any]:
    total: list[Any] | None = None
    first = 0
    for part in parts:
        found = gradient(rows[first : first + part], len(rows))
        first += part
        total = list(found) if total is None else [t + g for t, g in zip(total, found, strict=True)]
    assert total is not None
    return [t / len(parts) for t in total]


def hf_refusal(trainer: Any) -> str:
    """Why rows may not move in a Hugging Face Trainer; empty if they may.

    With `average_tokens_across_devices` the Trainer divides by the tokens of all ranks, provided that the model's loss
    takes `num_items_in_batch` (or the user's own loss function does).
    """
    if not getattr(trainer.args, "average_tokens_across_devices", False):
        return "average_tokens_across_devices is off: the loss is a mean over the rank's own tokens"
    if not (getattr(trainer, "model_accepts_loss_kwargs", False) or getattr(trainer, "compute_loss_func", None)):
        return "the model's loss does not take num_items_in_batch: it is a mean over the rank's own tokens"
    return ""
