"""Documents, micro-batches and their work.

Attention is causal and block-diagonal over the packed documents, so a micro-batch costs
`alpha * sum l + beta * sum l^2` per layer (paper: micro-batch predictor).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from resihp_plan.plan import ParallelPlan


@dataclass(frozen=True)
class Document:
    """A training document: its identity in the batch and its length in tokens."""

    id: int
    length: int


@dataclass(frozen=True)
class MicroBatchWork:
    """The two sums on which the cost of a micro-batch depends."""

    tokens: int
    sum_sq_len: int

    @classmethod
    def of(cls, lengths: Iterable[int]) -> MicroBatchWork:
        """Work of documents of these lengths, packed together."""
        known = tuple(lengths)
        return cls(sum(known), sum(n * n for n in known))


Work = tuple[tuple[MicroBatchWork, ...], ...]
"""[replica][micro-batch]: what each replica of a plan has to do in one iteration."""


@dataclass(frozen=True)
class Workload:
    """A typical global batch, for predictions about batches that do not exist yet."""

    num_micro_batches: int
    tokens_per_micro_batch: int
    sum_sq_len_per_micro_batch: int

    @classmethod
    def typical(
        cls, num_micro_batches: int, tokens_per_micro_batch: int, *, documents_per_micro_batch: int = 2
    ) -> Workload:
        """Micro-batches filled by equally long documents. Raises ValueError if a number is below 1."""
        if min(num_micro_batches, tokens_per_micro_batch, documents_per_micro_batch) < 1:
            raise ValueError(
                f"a workload needs at least 1 of each: num_micro_batches={num_micro_batches}, "
                f"tokens_per_micro_batch={tokens_per_micro_batch}, "
                f"documents_per_micro_batch={documents_per_micro_batch}"
            )
        squares = tokens_per_micro_batch**2 // documents_per_micro_batch
        return cls(num_micro_batches, tokens_per_micro_batch, squares)

    @property
    def tokens(self) -> int:
        """Tokens of one iteration."""
        return self.num_micro_batches * self.tokens_per_micro_batch

    @property
    def micro_batch(self) -> MicroBatchWork:
        return MicroBatchWork(self.tokens_per_micro_batch, self.sum_sq_len_per_micro_batch)

    def work(self, plan: ParallelPlan) -> Work:
        """Every micro-batch of every replica of `plan` is a typical one."""
        return tuple((self.micro_batch,) * replica.num_micro_batches for replica in plan.replicas)
