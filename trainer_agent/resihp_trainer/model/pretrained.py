"""Parameters of a Hugging Face model folder, one slice at a time: views of mapped files, so that a rank copies its own
shards and nothing else.

The folder: `config.json`, and `model.safetensors` or the files that `model.safetensors.index.json` names.
Errors: ValueError, one line, naming the folder and what is wrong with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from resihp_plan import Interval, ModelSpec, TensorSpec
from resihp_plan.huggingface import tensor_name

_FLOATING = frozenset({"F64", "F32", "F16", "BF16"})
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class Pretrained:
    """An open model folder; files are mapped into memory and read where asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = self._index()
        self._files: dict[str, Any] = {}

    def read(self, spec: TensorSpec, interval: Interval) -> Tensor:
        """The slice of a tensor that covers `interval` of its split dimension, in the file's precision: a view of the
        mapped file, to be copied."""
        lazy, part = self._open(spec), slice(interval.start, interval.stop)
        try:
            found: Tensor = lazy[part] if spec.dim == 0 else lazy[:, part]
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{self._folder}: {tensor_name(spec.name)}: {error}") from error
        return found

    def check(self, model: ModelSpec) -> None:
        """Raise ValueError if a tensor of `model` is missing or of another shape. Reads headers only."""
        for spec in model.tensors:
            self._open(spec)

    def _open(self, spec: TensorSpec) -> Any:
        """A slice that is not read yet."""
        name = tensor_name(spec.name)
        with_name = f"{self._folder}: {name}"
        try:
            lazy = self._file(name).get_slice(name)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{with_name}: {error}") from error
        if tuple(lazy.get_shape()) != spec.shape:
            raise ValueError(f"{with_name} has shape {tuple(lazy.get_shape())}, the job's model {spec.shape}")
        if lazy.get_dtype() not in _FLOATING:
            raise ValueError(f"{with_name} is {lazy.get_dtype()}: quantised models are not supported")
        return lazy

    def _file(self, name: str) -> Any:
        file = self._file_of.get(name, _SINGLE if not self._file_of else "")
        if not file:
            raise ValueError(f"{self._folder}: {_INDEX} names no file for {name}")
        if file not in self._files:
            path = self._folder / file
            if not path.is_file():
                raise ValueError(f"{path}: no such file")
            self._files[file] = safe_open(path, framework="pt")
        return self._files[file]

    def _index(self) -> dict[str, str]:
        """Tensor name -> file; empty if there is one file for all."""
        path = self._folder / _INDEX
        if not path.is_file():
            return {}
        try:
            found = json.loads(path.read_bytes())["weight_map"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: not an index of safetensors files ({error})") from error
        if not isinstance(found, dict) or not all(isinstance(v, str) and Path(v).name == v for v in found.values()):
            raise ValueError(f"{path}: weight_map must name files of the same folder")
        return found
