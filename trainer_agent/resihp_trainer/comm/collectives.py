"""The collectives of torch's process-group backends, which gloo and NCCL spell alike; how they run differs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from resihp_trainer.comm.operand import require_contiguous, require_gatherable, require_splits
from resihp_trainer.comm.port import Pending, ReduceOp

_REDUCE_OPS: dict[ReduceOp, Any] = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class BackendCollectives(ABC):
    """The operations of a `Group`, checked and put into torch's words. Ranks are plan ranks."""

    name: str
    ranks: tuple[int, ...]

    @abstractmethod
    def _start(self, operation: str, *operands: Any) -> Pending:
        """Start a method of the backend. Raises `EpochAborted`, `CommunicationFailed`, or ValueError once retired."""

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Pending:
        require_contiguous(tensor)
        options = dist.AllreduceOptions()
        options.reduceOp = _REDUCE_OPS[op]
        return self._start("allreduce", [tensor], options)

    def broadcast(self, tensor: Tensor, src: int) -> Pending:
        require_contiguous(tensor)
        if src not in self.ranks:
            raise ValueError(f"rank {src} is not in group {self.name} {self.ranks}")
        options = dist.BroadcastOptions()
        options.rootRank = self.ranks.index(src)
        options.rootTensor = 0
        return self._start("broadcast", [tensor], options)

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> Pending:
        require_gatherable(outputs, tensor, len(self.ranks))
        return self._start("allgather", [list(outputs)], [tensor])

    def all_to_all(
        self, output: Tensor, input: Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
    ) -> Pending:
        require_splits(output, output_splits, len(self.ranks))
        require_splits(input, input_splits, len(self.ranks))
        return self._start("alltoall_base", output, input, list(output_splits), list(input_splits))
