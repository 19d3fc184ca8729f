"""The group of a single rank: nothing to communicate."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from resihp_trainer.comm.aborts import AbortFlag
from resihp_trainer.comm.operand import require_contiguous, require_gatherable, require_splits
from resihp_trainer.comm.port import Pending, ReduceOp


class _Done:
    def wait(self) -> None:
        return None

    def is_done(self) -> bool:
        return True


class SoloGroup:
    """A `Group` with one member."""

    def __init__(self, name: str, rank: int, epoch: int, aborts: AbortFlag) -> None:
        self.name = name
        self.ranks = (rank,)
        self._epoch = epoch
        self._aborts = aborts

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Pending:
        require_contiguous(tensor)
        return self._done()

    def broadcast(self, tensor: Tensor, src: int) -> Pending:
        require_contiguous(tensor)
        if src not in self.ranks:
            raise ValueError(f"rank {src} is not in group {self.name} {self.ranks}")
        return self._done()

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> Pending:
        require_gatherable(outputs, tensor, 1)
        outputs[0].copy_(tensor)
        return self._done()

    def all_to_all(
        self, output: Tensor, input: Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
    ) -> Pending:
        require_splits(output, output_splits, 1)
        require_splits(input, input_splits, 1)
        output.copy_(input)
        return self._done()

    def _done(self) -> Pending:
        self._aborts.check(self._epoch)
        return _Done()
