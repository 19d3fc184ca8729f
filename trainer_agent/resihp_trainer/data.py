"""The global batch of an iteration: a pure function of (corpus, batch sizes, seed, iteration), whatever the layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resihp_messages import BatchConfig
from resihp_plan import Document
from resihp_trainer.corpus import Corpus

_SLACK = 0.1
"""Share of a micro-batch's budget that may stay empty: the remainder is not worth another document."""
_IDS_PER_ITERATION = 1 << 20


@dataclass(frozen=True)
class Batch:
    """Documents of one iteration in their original order: packed one after the other they fill `micro_batches`
    micro-batches of at most N tokens.

    `texts[i]` holds `documents[i].length + 1` bytes: all but the last are inputs, all but the first are targets.
    """

    iteration: int
    documents: tuple[Document, ...]
    texts: tuple[NDArray[np.uint8], ...]

    @property
    def num_tokens(self) -> int:
        return sum(d.length for d in self.documents)


def documents(corpus: Corpus, batch: BatchConfig, seed: int, iteration: int) -> Batch:
    """The batch of `iteration` (counted from 1). Ids are unique over the job; at least 85 % of the budget is used."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, iteration])))
    budget = batch.tokens_per_micro_batch
    slack = int(budget * _SLACK)
    found: list[Document] = []
    texts: list[NDArray[np.uint8]] = []
    for _ in range(batch.micro_batches):
        room = budget
        while room > slack:
            start, stop = _piece(corpus, rng, budget + 1)
            length = stop - start - 1
            if length > room:
                length = max(1, room - int(rng.integers(slack + 1)))
            found.append(Document(iteration * _IDS_PER_ITERATION + len(found), length))
            texts.append(corpus.text[start : start + length + 1])
            room -= length
    return Batch(iteration, tuple(found), tuple(texts))


def _piece(corpus: Corpus, rng: np.random.Generator, max_bytes: int) -> tuple[int, int]:
    """A random paragraph, or one of the parts of at most `max_bytes` that a longer one is cut into; 2 bytes or more."""
    paragraph = int(rng.integers(len(corpus.starts)))
    first, last = int(corpus.starts[paragraph]), int(corpus.stops[paragraph])
    part = int(rng.integers(-(-(last - first) // max_bytes)))
    start = first + part * max_bytes
    stop = min(start + max_bytes, last)
    return min(start, stop - 2), stop
