"""Which micro-batch and replica runs which document (design: section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from resihp_plan.cluster import Health
from resihp_plan.cost import CostModel
from resihp_plan.model import ModelSpec
from resihp_plan.packing import pack
from resihp_plan.plan import ParallelPlan
from resihp_plan.workload import Document, MicroBatchWork, Work


@dataclass(frozen=True)
class SlicedBatch:
    """A batch dealt out to a plan."""

    micro_batches: tuple[tuple[tuple[int, ...], ...], ...]
    """[replica][micro-batch] -> indices into the batch's documents, ascending. Empty micro-batches occur only when
    there are few documents."""
    lengths: tuple[int, ...]
    """Tokens of every document of the batch."""

    @cached_property
    def work(self) -> Work:
        """What each replica has to do, as `simulate` wants it."""
        return tuple(
            tuple(MicroBatchWork.of(self.lengths[i] for i in docs) for docs in replica)
            for replica in self.micro_batches
        )


def slice_batch(
    documents: Sequence[Document],
    plan: ParallelPlan,
    model: ModelSpec,
    *,
    tokens_per_micro_batch: int,
    speed: Health | None = None,
) -> SlicedBatch:
    """Pack all documents into the plan's micro-batches of at most N tokens and deal those to the replicas.

    The set of micro-batches depends only on the documents and on how many micro-batches the plan has, not on the
    layout; heavy ones are dealt so that the replicas' predicted times are level. `speed`: rank -> p, the same on every
    rank. Deterministic. Packing: `packing.pack` by the predicted cost of a layer.

    Raises ValueError with numbers for a document that is empty or longer than N, and if the documents do not fit.
    """
    for d in documents:
        if not 0 < d.length <= tokens_per_micro_batch:
            raise ValueError(
                f"document {d.id} has {d.length} tokens; a micro-batch holds 1 to {tokens_per_micro_batch}"
            )
    lengths = tuple(d.length for d in documents)
    cost = CostModel.for_model(model)
    costs = [cost.layer_s(MicroBatchWork.of([n])) for n in lengths]
    bins = pack(lengths, costs, plan.num_micro_batches, tokens_per_micro_batch)
    work = [MicroBatchWork.of(lengths[i] for i in b) for b in bins]
    dealt = deal(work, plan, cost, speed)
    return SlicedBatch(tuple(tuple(bins[b] for b in chosen) for chosen in dealt), lengths)


def deal(
    work: Sequence[MicroBatchWork], plan: ParallelPlan, cost: CostModel, speed: Health | None = None
) -> tuple[tuple[int, ...], ...]:
    """[replica] -> indices of its micro-batches, ascending; as many as the plan gives it.

    Heaviest first, each to the replica that would be done first with it and with its average share of what is left.
    Raises ValueError if the numbers differ.
    """
    if len(work) != plan.num_micro_batches:
        raise ValueError(f"{len(work)} micro-batches for a plan of {plan.num_micro_batches}")
    rest = MicroBatchWork(sum(w.tokens for w in work), sum(w.sum_sq_len for w in work))
    pace = [cost.pace_line(replica, rest, speed) for replica in plan.replicas]
    load = [0.0] * len(pace)
    dealt: list[list[int]] = [[] for _ in pace]
    order = sorted(range(len(work)), key=lambda m: (-cost.layer_s(work[m]), m))
    for n, m in enumerate(order):
        rest = MicroBatchWork(rest.tokens - work[m].tokens, rest.sum_sq_len - work[m].sum_sq_len)
        to_come = max(1, len(order) - n - 1)
        after: dict[int, float] = {}
        for a, replica in enumerate(plan.replicas):
            slots = replica.num_micro_batches - len(dealt[a]) - 1
            if slots >= 0:
                # The slots that stay open are filled with average ones of the rest, sooner or later.
                after[a] = load[a] + pace[a].seconds(work[m]) + slots * pace[a].seconds(rest) / to_come
        a = min(after, key=lambda a: (after[a], a))
        dealt[a].append(m)
        load[a] += pace[a].seconds(work[m])
    return tuple(tuple(sorted(chosen)) for chosen in dealt)
