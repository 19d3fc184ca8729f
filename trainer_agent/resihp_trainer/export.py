"""`python -m resihp_trainer.export`: the result of a job as a Hugging Face model folder, one tensor after the other.

At most one file's worth of tensors is in memory. The folder appears complete or not at all. Exit codes: 0 written (the
folder's name on stdout), 2 for input that cannot be exported (one line on stderr).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import Tensor

from resihp_messages import JobSpec
from resihp_plan import ModelSpec, ParallelPlan, TensorSpec
from resihp_plan.huggingface import config_of, tensor_name
from resihp_trainer.reference import model_of
from resihp_trainer.result import PLAN_FILE, ShardFiles
from resihp_trainer.tokens import FILE as TOKENIZER_FILE

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
MAX_FILE_BYTES = 2 << 30


def export(spec: JobSpec, shards: ShardFiles, target: Path, dtype: str, max_file_bytes: int = MAX_FILE_BYTES) -> None:
    """Write the first replica's parameters to `target`, which must not exist. Raises ValueError, OSError."""
    if target.exists():
        raise ValueError(f"{target}: exists already")
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        _write(spec, shards, partial, dtype, max_file_bytes)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write(spec: JobSpec, shards: ShardFiles, folder: Path, dtype: str, max_file_bytes: int) -> None:
    model = model_of(spec)
    files = list(_files(model, DTYPES[dtype].itemsize, max_file_bytes))
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(files, 1):
        name = "model.safetensors" if len(files) == 1 else f"model-{number:05}-of-{len(files):05}.safetensors"
        whole: dict[str, Tensor] = {tensor_name(t.name): shards.whole(t, 0).to(DTYPES[dtype]) for t in tensors}
        save_file(whole, folder / name, {"format": "pt"})
        weight_map |= dict.fromkeys(whole, name)
    if len(files) > 1:
        total = sum(prod(t.shape) for t in model.tensors) * DTYPES[dtype].itemsize
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_json(folder / "model.safetensors.index.json", index)
    base = _base_config(model)
    positions = max(spec.batch.tokens_per_micro_batch, model.rope_original_context if model.rope_factor > 1 else 2048)
    _write_json(folder / "config.json", config_of(model, dtype=dtype, max_positions=positions, base=base))
    if spec.data.tokenizer is not None:
        path = Path(spec.data.tokenizer)
        shutil.copyfile(path / TOKENIZER_FILE if path.is_dir() else path, folder / TOKENIZER_FILE)


def _files(model: ModelSpec, element_bytes: int, max_file_bytes: int) -> Iterator[list[TensorSpec]]:
    """Tensors of each file, in model order; a file holds one at least."""
    current: list[TensorSpec] = []
    size = 0
    for spec in model.tensors:
        more = prod(spec.shape) * element_bytes
        if current and size + more > max_file_bytes:
            yield current
            current, size = [], 0
        current.append(spec)
        size += more
    yield current


def _base_config(model: ModelSpec) -> dict[str, Any] | None:
    """The config of the folder that the job began with, if it is still there."""
    if model.hf is None:
        return None
    try:
        found = json.loads((Path(model.hf) / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m resihp_trainer.export", description=__doc__.split("\n")[0])
    parser.add_argument("--spec", type=Path, required=True, help="the job (JSON of JobSpec)")
    parser.add_argument("--final", type=Path, required=True, help="folder of the last epoch's shards")
    parser.add_argument("--to", type=Path, required=True, help="folder to write; must not exist")
    parser.add_argument("--dtype", choices=DTYPES, help="of the tensors; default: the job's")
    parser.add_argument("--max-file-bytes", type=int, default=MAX_FILE_BYTES, help="of one safetensors file")
    options = parser.parse_args(arguments)
    try:
        spec = JobSpec.model_validate_json(options.spec.read_bytes())
        plan = ParallelPlan.from_dict(json.loads((options.final / PLAN_FILE).read_bytes()))
        shards = ShardFiles(options.final, plan, model_of(spec))
        export(spec, shards, options.to, options.dtype or spec.dtype, options.max_file_bytes)
    except ValidationError as error:
        print(f"{options.spec}: {error.errors(include_url=False)[0]['msg']}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(options.to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
