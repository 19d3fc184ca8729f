"""Micro-batches made of real document lengths: packed to a context, or a fixed number of documents each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LOGNORMAL = (7.34, 1.52)
"""Natural log of tokens of source files; used where no measured lengths are at hand."""
UNPACKED_LIMIT = 32_768
UNPACKED_DOCUMENTS = 8


def document_lengths(data: Path | None, rng: np.random.Generator) -> tuple[Floats, str]:
    """Measured lengths of source files if `data` has them, else lognormal ones, and what they are."""
    if data is not None and (path := data / "seqlen_code.npy").is_file():
        return np.load(path, allow_pickle=False).astype(np.float64), "measured lengths of source files"
    return np.maximum(1.0, np.round(rng.lognormal(*LOGNORMAL, 20_000))), f"lognormal{LOGNORMAL}"


def micro_batches(lengths: Floats, context: int | None, count: int, rng: np.random.Generator) -> Floats:
    """(count, 3): micro-batches (1), tokens, sum of squared lengths. `context` None: not packed.

    Packed: documents in random order fill a budget of `context` tokens; one that does not fit is cut, as trainers do.
    """
    rows = np.ones((count, 3))
    for i in range(count):
        if context is None:
            pieces = np.minimum(rng.choice(lengths, UNPACKED_DOCUMENTS), UNPACKED_LIMIT)
        else:
            drawn = np.minimum(rng.choice(lengths, 64), context)
            ends = np.minimum(np.cumsum(drawn), context)
            pieces = np.diff(ends, prepend=0.0)
            pieces[-1] += context - ends[-1]
        rows[i, 1], rows[i, 2] = pieces.sum(), (pieces**2).sum()
    return rows
