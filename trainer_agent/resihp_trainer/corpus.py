"""Training text as one array of bytes, cut into pieces. No torch: other rooms may check a data path with it.

A *paragraph* is a run of consecutive bytes of one file between blank lines. Their lengths vary as natural text does,
which is what makes the cost of attention vary.
Errors: ValueError, one line, naming the path and what is wrong with it.
"""

from __future__ import annotations

import json
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAX_CORPUS_BYTES = 8 << 20
"""Every worker keeps the text in memory; what lies beyond this is not read."""

_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})
"""Folders left out: third-party code and test data would make the default corpus depend on what is installed."""
_BLANK_LINES = re.compile(rb"\n(?:[ \t\r]*\n)+")


@dataclass(frozen=True)
class Corpus:
    """`text`: uint8[total]; paragraph i is `text[starts[i]:stops[i]]`: at least 2 bytes, never across a file's end."""

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


def load_corpus(path: str | None, *, max_bytes: int = MAX_CORPUS_BYTES) -> Corpus:
    """Read the text at `path` (`resihp_messages.DataConfig`) up to `max_bytes`, in the order of names.

    Files that cannot be read or hold NUL bytes are skipped in folders and refused when named directly.
    """
    chunks: list[bytes] = []
    bounds: list[tuple[int, int]] = []
    size = 0
    for raw in _files(path):
        raw = raw[: max_bytes - size]
        bounds += [(size + a, size + b) for a, b in _paragraphs(raw)]
        chunks.append(raw)
        size += len(raw)
        if size >= max_bytes:
            break
    if not bounds:
        raise ValueError(f"data.path {path!r}: no text of at least 2 bytes found")
    edges = np.array(bounds, dtype=np.int64)
    return Corpus(np.frombuffer(b"".join(chunks), dtype=np.uint8), edges[:, 0].copy(), edges[:, 1].copy())


def _paragraphs(raw: bytes) -> Iterator[tuple[int, int]]:
    start = 0
    for match in _BLANK_LINES.finditer(raw):
        if match.end() - start >= 2:
            yield start, match.end()
        start = match.end()
    if len(raw) - start >= 2:
        yield start, len(raw)


def _files(path: str | None) -> Iterator[bytes]:
    if path is None:
        yield from _readable(p for p in _walk(sysconfig.get_path("stdlib")) if p.suffix == ".py")
        return
    where = Path(path)
    try:
        if where.is_dir():
            yield from _readable(_walk(path))
        elif where.suffix == ".jsonl":
            yield from _records(where)
        else:
            raw = where.read_bytes()
            if b"\0" in raw:
                raise ValueError(f"data.path {path!r}: not a text file (it holds NUL bytes)")
            yield raw
    except OSError as error:
        raise ValueError(f"data.path {path!r}: {error.strerror or error}") from error


def _walk(root: str) -> Iterator[Path]:
    """Files below `root` in the order of their names, without hidden ones and what is not library or text."""
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(n for n in inner if n not in _SKIPPED and not n.startswith("."))
        yield from (Path(folder, n) for n in sorted(names) if not n.startswith("."))


def _readable(names: Iterable[Path]) -> Iterator[bytes]:
    for name in names:
        try:
            raw = name.read_bytes()
        except OSError:
            continue
        if b"\0" not in raw:
            yield raw


def _records(path: Path) -> Iterator[bytes]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)["text"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"data.path {str(path)!r} line {number}: no JSON object with a `text` field"
                ) from error
            if not isinstance(text, str):
                raise ValueError(
                    f"data.path {str(path)!r} line {number}: `text` is {type(text).__name__}, not a string"
                )
            yield text.encode("utf-8", errors="replace")
