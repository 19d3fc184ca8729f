"""Results: one safetensors file per rank, and full tensors assembled from them.

`<output_dir>/final/e<epoch>/rank<r>.safetensors` holds the parameters of the rank's shards under their tensor names;
metadata: `plan_digest`, `committed`, `rank`, `epoch`. Errors: ValueError for files that do not belong together.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from resihp_plan import Interval, ModelSpec, ParallelPlan, TensorSpec, layout
from resihp_trainer.shards import ShardSet, narrow

PLAN_FILE = "plan.json"


def result_folder(output: Path, epoch: int) -> Path:
    """Where the shards of a job that ended in `epoch` lie."""
    return output / "final" / f"e{epoch}"


def write_shards(output: Path, held: ShardSet, committed: int) -> Path | None:
    """Write this rank's parameters, and on the plan's first active rank the plan; whole files or none.

    Returns the file, None for a standby rank, which has nothing to write. Raises OSError.
    """
    plan = held.layout.plan
    folder = result_folder(output, plan.epoch)
    folder.mkdir(parents=True, exist_ok=True)
    if held.rank == plan.active[0]:
        _replace(folder / PLAN_FILE, lambda path: path.write_text(json.dumps(plan.to_dict())))
    if not held.shards:
        return None
    metadata = {
        "plan_digest": plan.digest,
        "committed": str(committed),
        "rank": str(held.rank),
        "epoch": str(plan.epoch),
    }
    path = folder / f"rank{held.rank}.safetensors"
    _replace(path, lambda file: save_file(dict(held.parameters), file, metadata))
    return path


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    write(partial)
    partial.replace(path)


@dataclass(frozen=True)
class Assembled:
    """Full tensors of every replica (index: replica of the plan), and how many iterations they went through."""

    replicas: tuple[Mapping[str, Tensor], ...]
    committed: int

    @property
    def are_equal(self) -> bool:
        """Whether all replicas have the same bits."""
        first = self.replicas[0]
        return all(torch.equal(first[name], other[name]) for other in self.replicas[1:] for name in first)


class ShardFiles:
    """The shards in `folder`, read tensor by tensor.

    Raises ValueError if a file is missing, belongs to another plan or iteration or has the wrong shape, or if members
    of a replica differ in a part of a tensor that several of them hold.
    """

    def __init__(self, folder: Path, plan: ParallelPlan, model: ModelSpec) -> None:
        self.folder, self.plan = folder, plan
        self._layout = layout(plan, model)
        self._files: dict[int, Any] = {}
        committed: set[str] = set()
        for rank in plan.active:
            path = folder / f"rank{rank}.safetensors"
            if not path.is_file():
                raise ValueError(f"{path}: missing (rank {rank} of epoch {plan.epoch})")
            self._files[rank] = safe_open(path, framework="pt")
            metadata = self._files[rank].metadata() or {}
            if metadata.get("plan_digest") != plan.digest:
                raise ValueError(f"{path}: written for plan {metadata.get('plan_digest')}, not {plan.digest}")
            committed.add(metadata["committed"])
        if len(committed) != 1:
            raise ValueError(f"{folder}: shards of different iterations: {sorted(committed)}")
        self.committed = int(committed.pop())

    def whole(self, spec: TensorSpec, replica: int) -> Tensor:
        """The full tensor as `replica` has it; NaN where no shard covers it."""
        found: Tensor | None = None
        covered: list[Interval] = []
        for stage in self.plan.replicas[replica].stages:
            for rank in stage.ranks:
                interval = self._layout.shards(rank).get(spec.name)
                if interval is None:
                    continue
                part = self._part(rank, spec.name)
                if found is None:
                    found = torch.full(spec.shape, torch.nan, dtype=part.dtype)
                for common in (known.overlap(interval) for known in covered):
                    if len(common):
                        self._compare(rank, spec.name, found, part, interval, common)
                narrow(self._layout, spec.name, found, interval).copy_(part)
                covered.append(interval)
        assert found is not None  # every replica has every tensor
        return found

    def _part(self, rank: int, name: str) -> Tensor:
        part: Tensor = self._files[rank].get_tensor(name)
        expected = self._layout.shape(rank, name)
        if tuple(part.shape) != expected:
            path = self.folder / f"rank{rank}.safetensors"
            raise ValueError(f"{path}: {name} has shape {tuple(part.shape)}, not {expected}")
        return part

    def _compare(self, rank: int, name: str, found: Tensor, part: Tensor, interval: Interval, common: Interval) -> None:
        mine = narrow(self._layout, name, part, common, interval.start)
        if not torch.equal(mine, narrow(self._layout, name, found, common)):
            raise ValueError(f"{self.folder / f'rank{rank}.safetensors'}: {name} differs from another member's copy")


def assemble(folder: Path, plan: ParallelPlan, model: ModelSpec) -> Assembled:
    """Put the shards in `folder` together again. Raises what `ShardFiles` raises."""
    shards = ShardFiles(folder, plan, model)
    replicas = tuple({t.name: shards.whole(t, a) for t in model.tensors} for a in range(len(plan.replicas)))
    return Assembled(replicas, shards.committed)
