"""Checkpoints on disk: `<path>/it<iteration>/` with one safetensors file per rank of one replica, and a manifest.

A folder with that name is complete: it was written under another name and renamed. The manifest has the plan that cut
the tensors, so that any other plan can be filled from the files, slice by slice; and the checksum of each file.

Errors: ValueError, one line with the file's name, for what is missing, damaged or of another job; OSError.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from resihp_plan import Interval, InvalidPlan, Layout, ModelSpec, ParallelPlan, layout, transfers
from resihp_plan.layout import slice_elements
from resihp_trainer.join import Applied
from resihp_trainer.shards import ShardSet

FORMAT = 1
MANIFEST = "manifest.json"
PARTS = ("parameter", "exp_avg", "exp_avg_sq")
_PREFIX = "it"
_SUSPECT = "suspect"


@dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint says about itself."""

    applied: Applied
    plan: ParallelPlan
    tensors: dict[str, list[int]]
    """Shapes of the whole model's tensors."""
    dtype: str
    seed: int
    files: dict[str, dict[str, Any]]
    """File name -> `bytes`, `blake2b`."""

    @property
    def writers(self) -> tuple[int, ...]:
        return writers_of(self.plan)


def writers_of(plan: ParallelPlan) -> tuple[int, ...]:
    """Ranks that write a checkpoint: those of one replica hold everything."""
    return tuple(sorted(rank for stage in plan.replicas[0].stages for rank in stage.ranks))


def folder_of(path: Path, iteration: int) -> Path:
    return path / f"{_PREFIX}{iteration:08d}"


def partial_of(path: Path, iteration: int, epoch: int) -> Path:
    """Where the files lie while they are written."""
    return path / f".{folder_of(path, iteration).name}.e{epoch}.partial"


def available(path: Path) -> tuple[tuple[int, Path], ...]:
    """(iteration, folder) of every complete checkpoint, oldest first."""
    if not path.is_dir():
        return ()
    names = (p for p in path.iterdir() if p.name.startswith(_PREFIX) and p.name[len(_PREFIX) :].isdigit())
    return tuple(sorted((int(p.name[len(_PREFIX) :]), p) for p in names if p.is_dir()))


def put_aside(path: Path, iteration: int) -> tuple[Path, ...]:
    """Rename the checkpoints of later iterations: they are of a history that is given up because replicas differed, so
    nobody resumes from them, but somebody may want to look at them. Returns their new names."""
    found = []
    for newer, folder in available(path):
        if newer > iteration:
            found.append(folder.with_name(f"{_SUSPECT}-{folder.name}-{time.time_ns()}"))
            folder.rename(found[-1])
    return tuple(found)


# --- writing ------------------------------------------------------------------------------------------------------


def write_part(partial: Path, held: ShardSet) -> None:
    """Write this rank's shards and their checksum, durably; whole or not at all."""
    partial.mkdir(parents=True, exist_ok=True)
    path = partial / _file_name(held.rank)
    tensors = {
        f"{part}/{name}": tensor.contiguous()
        for name, shard in held.shards.items()
        for part, tensor in zip(PARTS, shard.state, strict=True)
    }
    scratch = path.with_suffix(".writing")
    try:
        save_file(tensors, scratch)
        _sync(scratch)
    except BaseException:
        scratch.unlink(missing_ok=True)  # a full disk has room for the next attempt
        raise
    entry = {"bytes": scratch.stat().st_size, "blake2b": _checksum(scratch)}
    scratch.replace(path)
    _write_json(path.with_suffix(".json"), entry)


def complete(path: Path, held: Layout, applied: Applied, *, seed: int, dtype: torch.dtype, keep: int) -> Path:
    """All parts are there: add the manifest, give the folder its name, delete the oldest beyond `keep`."""
    partial = partial_of(path, applied.iteration, held.plan.epoch)
    files = {}
    for rank in writers_of(held.plan):
        entry = (partial / _file_name(rank)).with_suffix(".json")
        files[_file_name(rank)] = json.loads(entry.read_text())
        entry.unlink()
    manifest = {
        "format": FORMAT,
        "applied": asdict(applied),
        "plan": held.plan.to_dict(),
        "tensors": {name: list(spec.shape) for name, spec in held.tensors.items()},
        "dtype": str(dtype).removeprefix("torch."),
        "seed": seed,
        "files": files,
    }
    _write_json(partial / MANIFEST, manifest)
    final = folder_of(path, applied.iteration)
    if final.exists():  # of a history that was given up: never half deleted under its name
        final.replace(partial.with_name(f"{partial.name}.old.partial"))
    partial.replace(final)
    _sync(path)
    for _, old in available(path)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    for left in path.glob(f".{_PREFIX}*.partial"):
        if _is_over(left, applied.iteration, held.plan.epoch):
            shutil.rmtree(left, ignore_errors=True)
    return final


def _is_over(partial: Path, iteration: int, epoch: int) -> bool:
    """Whether nobody writes there any more, now that `iteration` of `epoch` is complete: an epoch change cut that round
    short. The next round of this epoch, which other ranks may have begun, and those of a newer one live."""
    found = re.fullmatch(rf"\.{_PREFIX}(\d+)\.e(\d+)\.partial", partial.name)
    return found is None or int(found[2]) < epoch or (int(found[2]) == epoch and int(found[1]) <= iteration)


# --- reading ------------------------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> Manifest:
    """Raises ValueError if the folder has no usable manifest or lacks a file."""
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text())
        if data["format"] != FORMAT:
            raise ValueError(f"{path}: format {data['format']} is not {FORMAT}")
        plan = ParallelPlan.from_dict(data["plan"])
        found = Manifest(
            Applied(**data["applied"]), plan, data["tensors"], data["dtype"], data["seed"], dict(data["files"])
        )
    except FileNotFoundError:
        raise ValueError(f"{path}: missing") from None
    except (InvalidPlan, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not a manifest: {error}") from error
    for rank in found.writers:
        file, entry = folder / _file_name(rank), found.files.get(_file_name(rank))
        if entry is None or not file.is_file():
            raise ValueError(f"{file}: missing")
        if file.stat().st_size != entry["bytes"]:
            raise ValueError(f"{file}: has {file.stat().st_size} bytes, the manifest says {entry['bytes']}")
    return found


def check_fits(folder: Path, manifest: Manifest, model: ModelSpec, *, seed: int, dtype: torch.dtype) -> None:
    """Raises ValueError if the checkpoint is of another model, dtype or seed than the job."""
    wanted = {t.name: list(t.shape) for t in model.tensors}
    other = sorted(n for n in wanted.keys() | manifest.tensors.keys() if wanted.get(n) != manifest.tensors.get(n))
    if other:
        raise ValueError(
            f"{folder}: of another model: {other[0]} is {manifest.tensors.get(other[0])}, "
            f"the job has {wanted.get(other[0])}"
        )
    name = str(dtype).removeprefix("torch.")
    if manifest.dtype != name:
        raise ValueError(f"{folder}: written in {manifest.dtype}, the job trains in {name}")
    if manifest.seed != seed:
        raise ValueError(f"{folder}: written with seed {manifest.seed}, the job has {seed}: other documents follow")


def check_files(folder: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Raises ValueError for the first of these files whose checksum is wrong."""
    for name in names:
        found, expected = _checksum(folder / name), manifest.files[name]["blake2b"]
        if found != expected:
            raise ValueError(f"{folder / name}: checksum {found[:16]} instead of {expected[:16]}: the file is damaged")


def read_into(target: ShardSet, folder: Path, manifest: Manifest, tick: Callable[[], None]) -> int:
    """Fill `target` from the files, slice by slice, whatever plan wrote them; returns the bytes read."""
    held = layout(manifest.plan, target.layout.model)
    needed = transfers(held, target.layout, alive=manifest.writers)
    wanted = [(m.source, m.tensor, m.start, m.stop) for m in needed.incoming(target.rank)]
    wanted += [(k.rank, k.tensor, k.start, k.stop) for k in needed.kept if k.rank == target.rank]
    num_bytes = 0
    for source in sorted({w[0] for w in wanted}):
        with safe_open(folder / _file_name(source), framework="pt") as file:
            for _, name, start, stop in (w for w in wanted if w[0] == source):
                tick()
                spec, origin = held.tensors[name], held.shards(source)[name].start
                cut = (slice(None),) * spec.dim + (slice(start - origin, stop - origin),)
                for part, view in zip(PARTS, target.slices(name, start, stop), strict=True):
                    view.copy_(file.get_slice(f"{part}/{name}")[cut])
                    num_bytes += slice_elements(spec, Interval(start, stop)) * view.element_size()
    return num_bytes


def _file_name(rank: int) -> str:
    return f"rank{rank}.safetensors"


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _write_json(path: Path, data: Any) -> None:
    scratch = path.with_suffix(".writing")
    scratch.write_text(json.dumps(data))
    _sync(scratch)
    scratch.replace(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
