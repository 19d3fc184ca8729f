"""A plan document in few bytes: the same numbers by columns, as differences, compressed.

Every node gets the whole plan, so a change of a job with n nodes sends n times what one plan takes: documents as
`ParallelPlan.to_dict` writes them would be gigabytes for ten thousand devices.
"""

from __future__ import annotations

import base64
import itertools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

KEY = "compact"
MAX_BYTES = 64 << 20
"""Of a document once it is decompressed."""


def compact(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document for a message; `ParallelPlan.from_dict` reads it like the other form."""
    stages = [st for rep in document["replicas"] for st in rep["stages"]]
    columns = {
        "rest": {k: v for k, v in document.items() if k not in ("replicas", "standby")},
        "standby": _steps(document["standby"]),
        "counts": [rep["num_micro_batches"] for rep in document["replicas"]],
        "stages": [len(rep["stages"]) for rep in document["replicas"]],
        "layers": _steps([layer for st in stages for layer in st["layers"]]),
        "degrees": [len(st["ranks"]) for st in stages],
        "ranks": _steps([rank for st in stages for rank in st["ranks"]]),
        "weights": [weight for st in stages for weight in st["weights"]],
    }
    raw = json.dumps(columns, separators=(",", ":")).encode()
    return {KEY: base64.b64encode(zlib.compress(raw)).decode()}


def expanded(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Inverse of `compact`; other documents as they are. Raises ValueError, TypeError or KeyError if it is damaged."""
    if KEY not in document:
        return document
    columns = json.loads(_decompressed(base64.b64decode(document[KEY], validate=True)))
    layers, ranks, weights = iter(_sums(columns["layers"])), iter(_sums(columns["ranks"])), iter(columns["weights"])
    degrees = iter(columns["degrees"])
    replicas = [
        {"num_micro_batches": count, "stages": [_stage(layers, ranks, weights, degrees) for _ in range(num_stages)]}
        for count, num_stages in zip(columns["counts"], columns["stages"], strict=True)
    ]
    if any(next(column, None) is not None for column in (layers, ranks, weights, degrees)):
        raise ValueError("columns of different lengths")
    return {**columns["rest"], "standby": _sums(columns["standby"]), "replicas": replicas}


def _stage(layers: Iterator[int], ranks: Iterator[int], weights: Iterator[int], degrees: Iterator[int]) -> Any:
    degree = next(degrees, 0)
    return {
        "layers": list(itertools.islice(layers, 2)),
        "ranks": list(itertools.islice(ranks, degree)),
        "weights": list(itertools.islice(weights, degree)),
    }


def _decompressed(raw: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(raw, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(f"not compressed: {error}") from error
    if not stream.eof:
        raise ValueError(f"incomplete, or more than {MAX_BYTES} bytes")
    return found


def _steps(numbers: Sequence[int]) -> list[int]:
    return [b - a for a, b in itertools.pairwise((0, *numbers))]


def _sums(steps: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(steps))
