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
        empty = {name: s.parameter for name, s in self._held.shards.items() if not s.parameter.numel()}
        sums = {name: torch.empty_like(parameter) for name, parameter in empty.items()}
        norm_sq = 0.0
        while self._running:  # a bucket's memory goes with it, unless gradients are views of it
            job = self._running.pop(0)
            if job.pending is not None:
                job.pending.wait()
            settle()
            norm_sq += job.bucket.norm_weight * _sum_of_squares(job.flat)
            self._unpack(job, sums)
            del job
        return Gradients(iteration, sums, norm_sq)

    def _unpack(self, job: _InFlight, sums: dict[str, Tensor]) -> None:
        """A shard that is one piece of the bucket stays where it is: its sum is a view."""
        held, offset = self._held, 0
        for p in job.bucket.pieces:
            shard = held.shards[p.tensor].parameter
            whole = sums.get(p.tensor)
            piece = held.piece(p.tensor, shard if whole is None else whole, p.start, p.stop)
            flat = job.flat[offset : offset + piece.numel()].view(piece.shape)
            offset += piece.numel()
            if piece.numel() == shard.numel():
                sums[p.tensor] = flat
                continue
            if whole is None:
                whole = sums[p.tensor] = torch.empty_like(shard)
            held.piece(p.tensor, whole, p.start, p.stop).copy_(flat)


def _sum_of_squares(flat: Tensor) -> float:
    """In float64, without a copy of all of it in that precision; the same bits on all owners."""
    return float(sum(part.double().square().sum() for part in torch.split(flat, _CHUNK)))
