"""Who was damaged: the state of an iteration in which replicas differed, kept while it is redone.

Both sides of a pair applied the same summed gradients, so they hold the same bits except where one of them was damaged;
compared with the redone state, that one is farther away (ADR 017: values tell, digests do not).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from resihp_plan import Bucket
from resihp_trainer.copies import copy_bytes, fill, parts_of, shards_in
from resihp_trainer.digests import Fingerprints
from resihp_trainer.shards import ShardSet


@dataclass(frozen=True)
class Disputed:
    """This rank's shards after `iteration`, in host memory."""

    iteration: int
    earlier: ShardSet

    @classmethod
    def of(cls, held: ShardSet, iteration: int, dtype: torch.dtype) -> Disputed:
        """A copy of `held`, which is about to be given up."""
        buffer = torch.empty(copy_bytes(held.layout, held.rank, dtype), dtype=torch.uint8)
        fill(buffer, parts_of(held))
        return cls(iteration, shards_in(buffer, held.layout, held.rank, dtype))

    def distances(
        self, redone: ShardSet, now: Fingerprints, buckets: Sequence[Bucket]
    ) -> dict[str, tuple[float, float, float]]:
        """How far each shared bucket of this rank was from the redone one (`Fingerprints.distances`). Nothing if the
        rank holds another part of the model by now: then rounding differs, too."""
        if self.earlier.layout.shards(redone.rank) != redone.layout.shards(redone.rank):
            return {}
        return now.distances(Fingerprints.of(self.earlier, buckets))
