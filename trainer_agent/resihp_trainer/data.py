"""The global batch of an iteration: a pure function of (corpus, batch sizes, seed, iteration), whatever the layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resihp_messages import BatchConfig
from resihp_plan import Document
from resihp_trainer.corpus import Corpus
from resihp_trainer.model import MicroBatch

_SLACK = 0.1
"""Share of a micro-batch's budget that may stay empty: the remainder is not worth another document."""
_IDS_PER_ITERATION = 1 << 20
_DRAWS = 1000
"""A paragraph of bytes is never too short, one of tokens seldom."""


@dataclass(frozen=True)
class Batch:
    """Documents of one iteration in their original order: packed one after the other they fill `micro_batches`
    micro-batches of at most N tokens.

    `texts[i]` holds `documents[i].length + 1` tokens: all but the last are inputs, all but the first are targets.
    """

    iteration: int
    documents: tuple[Document, ...]
    texts: tuple[NDArray[np.integer], ...]

    @property
    def num_tokens(self) -> int:
        return sum(d.length for d in self.documents)

    def micro_batch(self, indices: Sequence[int]) -> MicroBatch:
        """These documents, packed."""
        return MicroBatch.of([self.texts[i] for i in indices], [self.documents[i].id for i in indices])


def documents(corpus: Corpus, batch: BatchConfig, seed: int, iteration: int) -> Batch:
    """The batch of `iteration` (counted from 1). Ids are unique over the job; at least 85 % of the budget is used."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, iteration])))
    budget = batch.tokens_per_micro_batch
    slack = int(budget * _SLACK)
    found: list[Document] = []
    texts: list[NDArray[np.integer]] = []
    for _ in range(batch.micro_batches):
        room = budget
        while room > slack:
            piece = _piece(corpus, rng, budget + 1)
            length = len(piece) - 1
            if length > room:
                length = max(1, room - int(rng.integers(slack + 1)))
            found.append(Document(iteration * _IDS_PER_ITERATION + len(found), length))
            texts.append(piece[: length + 1])
            room -= length
    return Batch(iteration, tuple(found), tuple(texts))


def _piece(corpus: Corpus, rng: np.random.Generator, max_tokens: int) -> NDArray[np.integer]:
    """A random paragraph, or one of the parts of at most `max_tokens` that a longer one is cut into; 2 tokens or more.

    Raises ValueError if there seems to be no such paragraph.
    """
    for _ in range(_DRAWS):
        paragraph = corpus.paragraph(int(rng.integers(len(corpus))))
        if len(paragraph) >= 2:
            break
    else:
        raise ValueError(f"data: {_DRAWS} paragraphs drawn, none of at least 2 tokens")
    part = int(rng.integers(-(-len(paragraph) // max_tokens)))
    start = part * max_tokens
    stop = min(start + max_tokens, len(paragraph))
    return paragraph[min(start, stop - 2) : stop]
