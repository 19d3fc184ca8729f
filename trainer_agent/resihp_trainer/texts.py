"""Texts of a data path, one after the other: plain files, JSONL lines, parquet rows. No torch.

Errors: ValueError, one line, naming the path and what is wrong with it.
"""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})
"""Folders left out: third-party code and test data would make the default corpus depend on what is installed."""
_ROWS_AT_ONCE = 256


def texts(path: str | None, text_field: str) -> Iterator[bytes]:
    """UTF-8 texts at `path` (`resihp_messages.DataConfig`), in the order of names, lines and rows; read as asked for.

    Files that cannot be read or hold NUL bytes are skipped in folders and refused when named directly.
    """
    if path is None:
        for name in _walk(sysconfig.get_path("stdlib")):
            if name.suffix == ".py":
                yield from _lenient(name)
        return
    where = Path(path)
    try:
        if where.is_dir():
            for name in _walk(path):
                yield from _READERS[name.suffix](name, text_field) if name.suffix in _READERS else _lenient(name)
        elif where.suffix in _READERS:
            yield from _READERS[where.suffix](where, text_field)
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


def _lenient(name: Path) -> Iterator[bytes]:
    try:
        raw = name.read_bytes()
    except OSError:
        return
    if b"\0" not in raw:
        yield raw


def _lines(path: Path, text_field: str) -> Iterator[bytes]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[text_field]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"data.path {str(path)!r} line {number}: no JSON object with a `{text_field}` field"
                ) from error
            yield _encoded(path, f"line {number}: `{text_field}`", text)


def _rows(path: Path, text_field: str) -> Iterator[bytes]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ValueError(f"data.path {str(path)!r}: parquet needs pyarrow: pip install 'resihp[parquet]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            if text_field not in file.schema_arrow.names:
                raise ValueError(f"data.path {str(path)!r}: no column `{text_field}`")
            number = 0
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[text_field]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    yield _encoded(path, f"row {number}: `{text_field}`", text)
    except ArrowException as error:
        raise ValueError(f"data.path {str(path)!r}: not a parquet file ({str(error).splitlines()[0]})") from error


def _encoded(path: Path, where: str, text: Any) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"data.path {str(path)!r} {where} is {type(text).__name__}, not a string")
    return text.encode("utf-8", errors="replace")


_READERS = {".jsonl": _lines, ".parquet": _rows}
