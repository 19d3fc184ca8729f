"""Silent corruption: replicas that must hold equal bits name different digests of them.

All owners of a bucket hold the same parameters and moments, bit by bit, whatever their layouts. So owners with another
digest than the majority hold corrupted state. Without a majority everybody concerned is named; who of them was damaged
shows once the iterations are redone from a state that all agreed on (`redone`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Divergence:
    """Owners of one bucket that do not agree."""

    iteration: int
    bucket: str
    ranks: tuple[int, ...]
    """The minority; all owners if there is no majority."""
    is_majority: bool
    digests: Mapping[int, str]
    agreed: int | None = None
    """The newest iteration after which all owners of all buckets were seen to agree; None: not seen."""


class Fingerprints:
    """Collects digests until every owner has spoken. One epoch; `agreed` is what the ones before it know.

    >>> state = Fingerprints(num_ranks=3)
    >>> for rank, digest in ((0, "aa"), (1, "aa"), (2, "ab")):
    ...     found = state.add(10, rank, {"bucket/0-1-2": digest})
    >>> [(d.bucket, d.ranks, d.is_majority) for d in found]
    [('bucket/0-1-2', (2,), True)]
    """

    def __init__(self, num_ranks: int, *, agreed: int | None = None, max_pending: int = 8) -> None:
        self.agreed = agreed
        """The newest iteration after which all owners were seen to agree on everything."""
        self._num_ranks, self._max_pending = num_ranks, max_pending
        self._is_new = True
        self._pending: dict[int, dict[int, dict[str, str]]] = {}
        self._said: set[tuple[str, tuple[int, ...]]] = set()

    def add(self, iteration: int, rank: int, digests: Mapping[str, str]) -> tuple[Divergence, ...]:
        """Digests of one rank after `iteration` (bucket -> digest; a rank without shared buckets gives none). Returns
        what has come to light, each bucket and set of ranks once."""
        if self._is_new and self.agreed is not None:  # the epoch may begin with a return: what came later is given up
            self.agreed = min(self.agreed, iteration - 1)
        self._is_new = False
        known = self._pending.setdefault(iteration, {})
        known[rank] = dict(digests)
        if len(known) < self._num_ranks and len(self._pending) <= self._max_pending:
            return ()
        oldest = iteration if len(known) >= self._num_ranks else min(self._pending)
        return self._judge(oldest, self._pending.pop(oldest))

    def _judge(self, iteration: int, known: Mapping[int, Mapping[str, str]]) -> tuple[Divergence, ...]:
        by_bucket: dict[str, dict[int, str]] = {}
        for rank in sorted(known):
            for bucket, digest in known[rank].items():
                by_bucket.setdefault(bucket, {})[rank] = digest
        found = [_compare(iteration, bucket, digests, self.agreed) for bucket, digests in sorted(by_bucket.items())]
        if not any(found) and len(known) == self._num_ranks:
            self.agreed = max(self.agreed or 0, iteration)
        new = [d for d in found if d is not None and (d.bucket, d.ranks) not in self._said]
        self._said |= {(d.bucket, d.ranks) for d in new}
        return tuple(new)

    def snapshot(self) -> dict[str, Any]:
        """Plain values."""
        rows = [[i, rank, digests] for i, known in self._pending.items() for rank, digests in known.items()]
        return {
            "num_ranks": self._num_ranks,
            "agreed": self.agreed,
            "is_new": self._is_new,
            "pending": rows,
            "said": [[b, list(r)] for b, r in sorted(self._said)],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        self._num_ranks, self.agreed, self._is_new = state["num_ranks"], state["agreed"], state["is_new"]
        self._pending = {}
        for iteration, rank, digests in state["pending"]:
            self._pending.setdefault(iteration, {})[rank] = digests
        self._said = {(bucket, tuple(ranks)) for bucket, ranks in state["said"]}


def _compare(iteration: int, bucket: str, digests: Mapping[int, str], agreed: int | None) -> Divergence | None:
    votes = Counter(digests.values()).most_common()
    if len(votes) < 2:
        return None
    is_majority = 2 * votes[0][1] > len(digests)
    ranks = tuple(sorted(r for r, digest in digests.items() if not is_majority or digest != votes[0][0]))
    return Divergence(iteration, bucket, ranks, is_majority, dict(digests), agreed)
