"""Gradient sums made equal on all owners: one all-reduce per bucket, whatever the replicas' layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resihp_plan import Bucket, group_name
from resihp_plan.groups import GroupKind
from resihp_trainer.comm.port import Group, Pending
from resihp_trainer.shards import ShardSet


@dataclass(frozen=True)
class Gradients:
    """Synchronised gradient sums of one iteration: `sums[name]` has the shape of the rank's shard.

    `norm_sq` is this rank's share of the squared global norm: the world's sum counts every element once.
    """

    iteration: int
    sums: Mapping[str, Tensor]
    norm_sq: float


_CHUNK = 1 << 16
"""Elements that are squared at once."""


@dataclass(frozen=True)
class _InFlight:
    bucket: Bucket
    flat: Tensor
    pending: Pending | None


class GradientSync:
    """The all-reduces of one iteration: `launch` all, then `finish`."""

    def __init__(self, held: ShardSet, buckets: Sequence[Bucket], groups: Mapping[str, Group]) -> None:
        self._held = held
        self._buckets = buckets
        self._groups = groups
        self._running: list[_InFlight] = []

    def launch(self, local: Mapping[str, Tensor]) -> None:
        """Pack this rank's gradient sums and start every bucket's all-reduce. Holders inside one replica have equal
        gradients, so each contributes its share of the copies."""
        rank = self._held.rank
        for bucket in self._buckets:
            flat = torch.cat(
                [self._held.piece(p.tensor, local[p.tensor], p.start, p.stop).reshape(-1) for p in bucket.pieces]
            )
            copies = bucket.copies(rank)
            if copies > 1:
                flat /= copies
            group = self._groups[group_name(GroupKind.BUCKET, bucket.owners)] if bucket.is_shared else None
            self._running.append(_InFlight(bucket, flat, group.all_reduce(flat) if group else None))

    def finish(self, iteration: int, settle: Callable[[], None] = lambda: None) -> Gradients:
        """Wait for all of them and unpack. `settle`: `Communicator.settle` of the epoch, before a number is read from
        the device. Raises what they raise."""
        held = self._held
        sums = {name: torch.empty_like(shard.parameter) for name, shard in held.shards.items()}
        norm_sq = 0.0
        while self._running:  # each bucket's memory goes with it
            job = self._running[0]
            if job.pending is not None:
                job.pending.wait()
            settle()
            norm_sq += job.bucket.norm_weight * _sum_of_squares(job.flat)
            offset = 0
            for p in job.bucket.pieces:
                view = held.piece(p.tensor, sums[p.tensor], p.start, p.stop)
                view.copy_(job.flat[offset : offset + view.numel()].view(view.shape))
                offset += view.numel()
            del self._running[0], job
        return Gradients(iteration, sums, norm_sq)


def _sum_of_squares(flat: Tensor) -> float:
    """In float64, without a copy of all of it in that precision; the same bits on all owners."""
    return float(sum(part.double().square().sum() for part in torch.split(flat, _CHUNK)))
