"""Which micro-batch and replica runs which document (design: section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from resihp_plan.cluster import Health
from resihp_plan.cost import CostModel, Linear
from resihp_plan.dealing import deal, share
from resihp_plan.model import ModelSpec
from resihp_plan.packing import pack
from resihp_plan.plan import ParallelPlan
from resihp_plan.workload import Document, MicroBatchWork, Work

Dealt = tuple[tuple[tuple[int, ...], ...], ...]
"""[replica][micro-batch] -> indices into the batch's documents, ascending."""
ROOMS = (1.0, 0.98, 0.96, 0.93, 0.9)
"""How full the micro-batches of the faster replicas may become: completely full ones often cannot be packed."""


@dataclass(frozen=True)
class SlicedBatch:
    """A batch dealt out to a plan."""

    micro_batches: Dealt
    """Empty micro-batches occur only when there are few documents."""
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
    """Pack all documents into the plan's micro-batches of at most N tokens, so that the replicas' predicted times are
    level. `speed`: rank -> speed, the same on every rank; default: the plan's own speeds.

    Equal replicas: equally heavy micro-batches (`packing.pack`), dealt out evenly. Unequal ones: as well documents by
    replica, long ones to where time is (attention makes them heavier than their tokens); whichever is predicted to be
    over first. In a replica, light micro-batches come first and last, where the pipeline fills and drains.
    Deterministic.

    Raises ValueError with numbers for a document that is empty or longer than N, and if the documents do not fit.
    """
    for d in documents:
        if not 0 < d.length <= tokens_per_micro_batch:
            raise ValueError(
                f"document {d.id} has {d.length} tokens; a micro-batch holds 1 to {tokens_per_micro_batch}"
            )
    lengths = tuple(d.length for d in documents)
    cost = CostModel.for_model(model)
    slicer = _Slicer(lengths, plan, cost, plan.speed_of if speed is None else speed, tokens_per_micro_batch)
    return SlicedBatch(slicer.best(), lengths)


class _Slicer:
    """Divisions of one batch and their predicted times."""

    def __init__(
        self, lengths: tuple[int, ...], plan: ParallelPlan, cost: CostModel, speed: Health, capacity: int
    ) -> None:
        self.lengths, self.plan, self.cost, self.speed, self.capacity = lengths, plan, cost, speed, capacity
        self.costs = [cost.layer_s(MicroBatchWork.of([n])) for n in lengths]
        whole = MicroBatchWork.of(lengths)
        self.paces = [cost.pace_line(replica, whole, speed) for replica in plan.replicas]

    def best(self) -> Dealt:
        found = [self._level()]
        if self._unequal():
            found += [d for room in ROOMS if (d := self._by_replica(room)) is not None]
        return self._arranged(min(found, key=self._seconds))

    def _unequal(self) -> bool:
        full = MicroBatchWork.of([self.capacity])
        times = [
            pace.seconds(full) * (replica.num_micro_batches + len(replica.stages) - 1)
            for pace, replica in zip(self.paces, self.plan.replicas, strict=True)
            if replica.num_micro_batches
        ]
        return max(times) > 1.01 * min(times)

    def _level(self) -> Dealt:
        """Micro-batches that are as equal as possible."""
        bins = pack(self.lengths, self.costs, self.plan.num_micro_batches, self.capacity)
        work = [MicroBatchWork.of(self.lengths[i] for i in b) for b in bins]
        return tuple(tuple(bins[b] for b in chosen) for chosen in deal(work, self.plan, self.cost, self.speed))

    def _by_replica(self, room: float) -> Dealt | None:
        """Documents to replicas first; None if a replica's do not fit into its micro-batches."""
        slowest = max(range(len(self.paces)), key=lambda a: self.paces[a].per_token)  # gets short ones, which pack well
        rooms = [
            int((1.0 if a == slowest else room) * r.num_micro_batches * self.capacity)
            for a, r in enumerate(self.plan.replicas)
        ]
        shared = share(self.lengths, self.costs, self.paces, rooms)
        if shared is None:
            return None
        dealt = []
        for replica, chosen in zip(self.plan.replicas, shared, strict=True):
            lengths, costs = [self.lengths[i] for i in chosen], [self.costs[i] for i in chosen]
            try:
                bins = pack(lengths, costs, replica.num_micro_batches, self.capacity) if chosen else ()
            except ValueError:
                return None
            empty = ((),) * (replica.num_micro_batches - len(bins))
            dealt.append((*(tuple(chosen[i] for i in b) for b in bins), *empty))
        return tuple(dealt)

    def _seconds(self, dealt: Dealt) -> float:
        """Estimate: every micro-batch at the pace of the slowest stage, and the heaviest through the other stages."""
        times = [0.0]
        for pace, replica, batches in zip(self.paces, self.plan.replicas, dealt, strict=True):
            each = [self._pace_s(pace, b) for b in batches if b]
            times.append(sum(each) + (len(replica.stages) - 1) * max(each, default=0.0))
        return max(times)

    def _pace_s(self, pace: Linear, documents: Sequence[int]) -> float:
        return pace.seconds(MicroBatchWork.of(self.lengths[i] for i in documents))

    def _arranged(self, dealt: Dealt) -> Dealt:
        """Light, heavy, light."""
        found = []
        for batches in dealt:
            order = sorted(batches, key=lambda b: (sum(self.costs[i] for i in b), b))
            found.append((*order[::2], *order[1::2][::-1]))
        return tuple(found)
