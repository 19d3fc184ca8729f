"""`[model] hf = "FOLDER"` in a job file: the model's sizes come from the folder's `config.json`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resihp_cli.errors import CliError
from resihp_messages import JobSpec
from resihp_plan.huggingface import spec_of

OWN_KEYS = frozenset({"hf", "mlp_block", "vocab_block", "init_std", "dropout", "recompute", "autocast"})
"""What a job file may say about such a model: how it is trained and cut, not what it is."""


def completed(table: Mapping[str, Any]) -> dict[str, Any]:
    """The `[model]` table with all sizes filled in. Raises `CliError` that names the file and the key."""
    folder = table["hf"]
    if not isinstance(folder, str):
        raise CliError(f"model.hf: expected a folder, got {folder!r}")
    path = Path(folder, "config.json")
    foreign = sorted(set(table) - OWN_KEYS)
    if foreign:
        raise CliError(f"model.{foreign[0]} comes from {path}: leave it out beside model.hf")
    try:
        config = json.loads(path.read_bytes())
        if not isinstance(config, dict):
            raise ValueError("not a JSON object")
        model = spec_of(config)
    except OSError as error:
        raise CliError(f"model.hf: {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CliError(f"model.hf: {path}: {error}") from error
    return {**dataclasses.asdict(model), **table}


def check_files(spec: JobSpec) -> None:
    """Make sure, before anything is started, that this machine has the files of the model and the tokenizer.
    Raises `CliError`."""
    wanted = []
    if spec.model.hf is not None:
        folder = Path(spec.model.hf)
        wanted.append(("model.hf", [folder / "model.safetensors", folder / "model.safetensors.index.json"]))
    if spec.data.tokenizer is not None:
        path = Path(spec.data.tokenizer)
        wanted.append(("data.tokenizer", [path / "tokenizer.json" if path.is_dir() else path]))
    for key, choices in wanted:
        if not any(path.is_file() for path in choices):
            raise CliError(f"{key}: no such file: {' or '.join(map(str, choices))}")
