"""Parameters of a Hugging Face model folder, one slice at a time: no rank ever holds more than its own shards, and
for the moment of reading a slice of columns, the tensor that they belong to.

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

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class Pretrained:
    """An open model folder; files are mapped into memory and read where asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = self._index()
        self._files: dict[str, Any] = {}

    def read(self, spec: TensorSpec, interval: Interval) -> Tensor:
        """The slice of a tensor that covers `interval` of its split dimension, in the file's precision."""
        name = tensor_name(spec.name)
        with_name = f"{self._folder}: {name}"
        try:
            lazy = self._file(name).get_slice(name)
            shape = tuple(lazy.get_shape())
            if shape != spec.shape:
                raise ValueError(f"{with_name} has shape {shape}, the job's model {spec.shape}")
            part = slice(interval.start, interval.stop)
            found: Tensor = lazy[part] if spec.dim == 0 else lazy[:, part]
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{with_name}: {error}") from error
        if not found.dtype.is_floating_point:
            raise ValueError(f"{with_name} is {found.dtype}: quantised models are not supported")
        return found

    def check(self, model: ModelSpec) -> None:
        """Raise ValueError if a tensor of `model` is missing or of another shape. Reads headers only."""
        for spec in model.tensors:
            self.read(spec, Interval(0, 0))

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
