"""The vote: one all-reduce over the world that clips, counts and decides (docs/protocol.md).

The sum of all ballots is the same on every rank, so `count` gives the same outcome everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

_FIELDS = 11
"""ok, norm^2, tokens, loss, ahead, ahead^2, copies, files, seconds, order, order^2; then one count per document."""


class Ballot(NamedTuple):
    """What one rank puts in. Loss and tokens come from one rank per replica, so that the sums count each once."""

    ok: bool
    norm_sq: float
    tokens: int
    loss: float
    epochs_ahead: int
    """By how much the epoch of the held planned plan exceeds the current one; 0 without one."""
    covered: Collection[int]
    """Indices of the batch's documents that this rank brought to the loss."""
    copies: int = 0
    """1 if this rank's part of the snapshot under way is done; more than the world has ranks if it failed."""
    files: int = 0
    """The same of the checkpoint under way."""
    seconds: float = 0.0
    """Of this rank's clock since its last ballot in the epoch, or since its begin."""
    order: int = 0
    """Key (at most 4,096) of the probes that this rank has been told to run; 0 without."""

    def vector(self, num_documents: int) -> Tensor:
        """float64[11 + num_documents], to be summed over the world."""
        ahead = float(self.epochs_ahead)
        votes = (ahead, ahead * ahead, self.copies, self.files, self.seconds, self.order, self.order * self.order)
        counts = [0.0] * num_documents
        for d in self.covered:
            counts[d] += 1.0
        return torch.tensor((self.ok, self.norm_sq, self.tokens, self.loss, *votes, *counts), dtype=torch.float64)


class Outcome(NamedTuple):
    """The result of the vote of `iteration`. `refusal` is empty if the iteration is committed."""

    iteration: int
    norm: float
    """Global L2 norm of the gradient sum."""
    tokens: int
    loss: float
    """Sum over tokens, nats."""
    samples_expected: int
    samples_once: int
    next_epoch: int
    """The planned epoch that every rank holds; 0 if there is none."""
    refusal: str
    copies: int = 0
    """Sum over the world; its size if the snapshot under way is complete everywhere."""
    files: int = 0
    seconds: float = 0.0
    """Mean over the world: how long the iteration took, the same number on every rank."""
    probes: bool = False
    """Whether every rank holds the same order to probe."""

    @property
    def mean_loss(self) -> float:
        return self.loss / self.tokens if self.tokens else math.nan


def count(total: Tensor, iteration: int, *, world_size: int, expected_tokens: int, epoch: int) -> Outcome:
    """Read the sum of all ballots. Commit only if every rank is ok, every document was used exactly once, and gradient
    and loss are finite."""
    sums: list[float] = total.tolist()
    ok, norm_sq, tokens, loss, ahead, ahead_sq, copies, files, seconds, order, order_sq = sums[:_FIELDS]
    coverage = sums[_FIELDS:]
    once = coverage.count(1.0)
    refusal = ""
    if ok != world_size:
        refusal = f"{world_size - int(ok)} of {world_size} ranks voted no"
    elif once != len(coverage) or int(tokens) != expected_tokens:
        lost, repeated = sum(c < 1.0 for c in coverage), sum(c > 1.0 for c in coverage)
        refusal = f"{lost} documents lost, {repeated} repeated, {int(tokens)} of {expected_tokens} tokens"
    elif not (math.isfinite(norm_sq) and math.isfinite(loss)):
        refusal = f"not finite: squared gradient norm {norm_sq}, loss {loss}"
    # Equality without a second collective: sum(a)^2 = n * sum(a^2) iff all a are equal (Cauchy-Schwarz). Exact in
    # float64 while n * a < 2^26: that is why the difference of epochs is summed and not the epoch.
    unanimous = ahead > 0 and ahead * ahead == world_size * ahead_sq
    return Outcome(
        iteration=iteration,
        norm=math.sqrt(norm_sq) if norm_sq >= 0 else math.nan,
        tokens=int(tokens),
        loss=loss,
        samples_expected=len(coverage),
        samples_once=once,
        next_epoch=epoch + int(ahead) // world_size if unanimous else 0,
        refusal=refusal,
        copies=int(copies),
        files=int(files),
        seconds=seconds / world_size,
        probes=order > 0 and order * order == world_size * order_sq,
    )
