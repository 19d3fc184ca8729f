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

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from resihp_plan import ModelSpec, ParallelPlan, layout
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


def assemble(folder: Path, plan: ParallelPlan, model: ModelSpec) -> Assembled:
    """Put the shards in `folder` together again.

    Raises ValueError if a file is missing, belongs to another plan or iteration or has the wrong shape, or if members
    of a tensor-parallel group differ in a replicated tensor.
    """
    held = layout(plan, model)
    replicas: list[dict[str, Tensor]] = []
    committed: set[str] = set()
    for replica in plan.replicas:
        whole: dict[str, Tensor] = {}
        for rank in (r for stage in replica.stages for r in stage.ranks):
            path = folder / f"rank{rank}.safetensors"
            if not path.is_file():
                raise ValueError(f"{path}: missing (rank {rank} of epoch {plan.epoch})")
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("plan_digest") != plan.digest:
                    raise ValueError(f"{path}: written for plan {metadata.get('plan_digest')}, not {plan.digest}")
                committed.add(metadata["committed"])
                for name, interval in held.shards(rank).items():
                    part = file.get_tensor(name)
                    if tuple(part.shape) != held.shape(rank, name):
                        raise ValueError(f"{path}: {name} has shape {tuple(part.shape)}, not {held.shape(rank, name)}")
                    known = name in whole
                    if not known:
                        whole[name] = torch.full(held.tensors[name].shape, torch.nan, dtype=part.dtype)
                    view = narrow(held, name, whole[name], interval)
                    is_copy = known and len(interval) and not torch.isnan(view).any()
                    if is_copy and not torch.equal(view, part):
                        raise ValueError(f"{path}: {name} differs from another member's copy")
                    view.copy_(part)
        replicas.append(whole)
    if len(committed) != 1:
        raise ValueError(f"{folder}: shards of different iterations: {sorted(committed)}")
    return Assembled(tuple(replicas), int(committed.pop()))
