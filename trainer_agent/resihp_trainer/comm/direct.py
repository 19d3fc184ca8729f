"""All-reduce and all-gather of small tensors in one step: everybody sends to everybody, and reduces by itself.

gloo's own are rings: 2(n - 1) turns of two segments, each of which wakes two threads of the next rank. Where processes
share cores those wake-ups are all there is: among eight on two cores 64 KiB took 26 ms in 600 switches, in one step
7 ms in 125 (docs/adr/019). In exchange a rank sends n - 1 times its tensor instead of nearly 2, so this is for small
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from resihp_trainer.comm.port import Pending, ReduceOp

LIMIT_BYTES = 2 << 20
"""What a rank sends at most in one step."""


def is_small(tensor: Tensor, members: int) -> bool:
    """Whether one step among `members` is shorter than a ring."""
    return 0 < tensor.nbytes * (members - 1) <= LIMIT_BYTES


def reduce_into(tensor: Tensor, received: Tensor, own: int, op: ReduceOp) -> None:
    """Replace `tensor` (contiguous, any shape) by the reduction over all members. `received`: flat, [(members - 1) *
    elements], what the others sent, by their order without `own`, this rank's index. Element by element in the order of
    the ranks, so that all of them, whatever their processors, come to the same bits. Overwrites `received`."""
    mine = tensor.detach().view(-1)
    parts = list(received.view(-1, mine.numel()))
    parts.insert(own, mine)
    for part in parts[1:]:
        _INTO[op](parts[0], part)
    mine.copy_(parts[0])


def spread_into(outputs: Sequence[Tensor], tensor: Tensor, received: Tensor, own: int) -> None:
    """The all-gather's end: `outputs`, one per member and shaped like `tensor`, get what each sent. `received` and
    `own` as above."""
    others = iter(received.view(-1, tensor.numel()))
    for index, output in enumerate(outputs):
        output.copy_(tensor if index == own else next(others).view_as(output))


class Followed:
    """A running exchange, and what is left to do on this rank when it is over."""

    def __init__(self, exchange: Pending, follow: Callable[[], None]) -> None:
        self._exchange = exchange
        self._follow: Callable[[], None] | None = follow

    def wait(self) -> None:
        self._exchange.wait()
        if self._follow is not None:
            self._follow()
            self._follow = None

    def is_done(self) -> bool:
        if not self._exchange.is_done():
            return False
        self.wait()
        return True


_INTO: dict[ReduceOp, Callable[[Tensor, Tensor], object]] = {
    "sum": lambda into, part: into.add_(part),
    "max": lambda into, part: torch.maximum(into, part, out=into),
    "min": lambda into, part: torch.minimum(into, part, out=into),
}
