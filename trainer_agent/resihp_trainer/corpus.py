"""Training text, cut into paragraphs of bytes or tokens. No torch: other rooms may check a data path with it.

A *paragraph* is a run of consecutive bytes of one text between blank lines. Their lengths vary as natural text does,
which is what makes the cost of attention vary.
Errors: ValueError, one line, naming the path and what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from resihp_trainer.texts import texts
from resihp_trainer.tokens import TextTokenizer

MAX_CORPUS_BYTES = 8 << 20
"""Every worker keeps the text in memory; what lies beyond this is not read."""

_BLANK_LINES = re.compile(rb"\n(?:[ \t\r]*\n)+")


@dataclass(frozen=True)
class Corpus:
    """`text`: uint8[total]; paragraph i is `text[starts[i]:stops[i]]`: at least 2 bytes, never across a text's end."""

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    tokenizer: TextTokenizer | None = None
    _encoded: dict[int, NDArray[np.int32]] = field(default_factory=dict, repr=False, compare=False)
    """Paragraphs that were asked for: encoding all of them first would hold up the start."""

    def __len__(self) -> int:
        """Paragraphs."""
        return len(self.starts)

    def paragraph(self, i: int) -> NDArray[np.integer]:
        """Its bytes, or with a tokenizer its tokens, which may be none."""
        raw = self.text[self.starts[i] : self.stops[i]]
        if self.tokenizer is None:
            return raw
        if i not in self._encoded:
            self._encoded[i] = self.tokenizer.encode(raw.tobytes())
        return self._encoded[i]

    @property
    def largest_token(self) -> int:
        """The largest byte of the text, or the largest token that the tokenizer has."""
        return int(self.text.max()) if self.tokenizer is None else self.tokenizer.largest


def load_corpus(
    path: str | None, *, text_field: str = "text", tokenizer: str | None = None, max_bytes: int = MAX_CORPUS_BYTES
) -> Corpus:
    """Read the texts at `path` up to `max_bytes`; parameters as in `resihp_messages.DataConfig`."""
    encoder = TextTokenizer(tokenizer) if tokenizer is not None else None
    chunks: list[bytes] = []
    bounds: list[tuple[int, int]] = []
    size = 0
    for raw in texts(path, text_field):
        raw = raw[: max_bytes - size]
        bounds += [(size + a, size + b) for a, b in _paragraphs(raw)]
        chunks.append(raw)
        size += len(raw)
        if size >= max_bytes:
            break
    if not bounds:
        raise ValueError(f"data.path {path!r}: no text of at least 2 bytes found")
    edges = np.array(bounds, dtype=np.int64)
    whole = np.frombuffer(b"".join(chunks), dtype=np.uint8)
    return Corpus(whole, edges[:, 0].copy(), edges[:, 1].copy(), encoder)


def _paragraphs(raw: bytes) -> Iterator[tuple[int, int]]:
    start = 0
    for match in _BLANK_LINES.finditer(raw):
        if match.end() - start >= 2:
            yield start, match.end()
        start = match.end()
    if len(raw) - start >= 2:
        yield start, len(raw)
