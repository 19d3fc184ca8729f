"""Which micro-batch and replica runs which document (design: section 6.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from resihp_plan.cluster import Health
from resihp_plan.cost import CostModel
from resihp_plan.dealing import deal, share
from resihp_plan.model import ModelSpec
from resihp_plan.packing import pack, tapered
from resihp_plan.plan import ParallelPlan
from resihp_plan.staging import staged_s
from resihp_plan.workload import Document, MicroBatchWork, Work

Dealt = tuple[tuple[tuple[int, ...], ...], ...]
"""[replica][micro-batch] -> indices into the batch's documents, ascending."""
ROOMS = (1.0, 0.98, 0.96, 0.93, 0.9)
"""How full the micro-batches of the faster replicas may become: completely full ones often cannot be packed."""
Taper = tuple[int, float]
LIGHT: tuple[Taper, ...] = ((2, 0.9), (2, 0.7), (2, 0.5), (4, 0.9), (4, 0.7), (4, 0.5), (6, 1.0))
"""Per replica: how many micro-batches are light, and how full they may become. While a pipeline fills and drains, all
stages but one wait for one micro-batch; what it costs is what the bubble costs."""


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

    Equally heavy micro-batches (`packing.pack`), or light ones for the ends of the pipelines (`LIGHT`), dealt out
    evenly. Unequal replicas: as well documents by replica, long ones to where time is (attention makes them heavier
    than their tokens). Whichever is predicted to be over first. In a replica, light micro-batches come first and last,
    where the pipeline fills and drains. Deterministic.

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
        self.stages = [cost.stage_lines(replica, whole, speed) for replica in plan.replicas]
        self.paces = [max(lines, key=lambda line: line.seconds(whole)) for lines in self.stages]
        self.deepest = max(len(r.stages) for r in plan.replicas)

    def best(self) -> Dealt:
        found = [self._level(), *self._level_tapered()]
        if self._unequal():
            by_room = [(room, d) for room in ROOMS if (d := self._by_replica(room)) is not None]
            found += [d for _, d in by_room]
            if by_room:
                room, _ = min(by_room, key=lambda each: self._seconds(each[1]))
                found += [d for taper in LIGHT if (d := self._by_replica(room, taper)) is not None]
        return min(found, key=self._seconds)

    def _level_tapered(self) -> Iterator[Dealt]:
        total, working = self.plan.num_micro_batches, sum(r.num_micro_batches > 0 for r in self.plan.replicas)
        for light, fill in self._tapers(total // working):
            bins = tapered(self.lengths, self.costs, total, self.capacity, light=light * working, fill=fill)
            if bins is not None:
                yield self._dealt(bins)

    def _tapers(self, per_replica: int) -> list[Taper]:
        """None for a single stage, which has no bubble, nor for batches that leave no micro-batch between the ends."""
        return [] if self.deepest == 1 else [each for each in LIGHT if each[0] < per_replica]

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
        return self._dealt(pack(self.lengths, self.costs, self.plan.num_micro_batches, self.capacity))

    def _dealt(self, bins: Sequence[tuple[int, ...]]) -> Dealt:
        work = [MicroBatchWork.of(self.lengths[i] for i in b) for b in bins]
        chosen = deal(work, self.plan, self.cost, self.speed)
        return self._arranged([[bins[b] for b in each] for each in chosen])

    def _by_replica(self, room: float, taper: Taper | None = None) -> Dealt | None:
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
            bins = self._packed(chosen, replica.num_micro_batches, taper)
            if bins is None:
                return None
            dealt.append(bins)
        return self._arranged(dealt)

    def _packed(self, chosen: tuple[int, ...], count: int, taper: Taper | None) -> tuple[tuple[int, ...], ...] | None:
        """A replica's documents in its micro-batches."""
        lengths, costs = [self.lengths[i] for i in chosen], [self.costs[i] for i in chosen]
        bins: tuple[tuple[int, ...], ...] | None = None
        if taper is not None and taper in self._tapers(count):
            bins = tapered(lengths, costs, count, self.capacity, light=taper[0], fill=taper[1])
        try:
            bins = bins or (pack(lengths, costs, count, self.capacity) if chosen else ())
        except ValueError:
            return None
        return (*(tuple(chosen[i] for i in b) for b in bins), *(((),) * (count - len(bins))))

    def _seconds(self, dealt: Dealt) -> float:
        """Of the slowest replica; micro-batches that other replicas execute count where they belong."""
        times = [0.0]
        for lines, batches in zip(self.stages, dealt, strict=True):
            work = [MicroBatchWork.of(self.lengths[i] for i in b) for b in batches if b]
            if work:
                unit_s = [[line.seconds(w) for w in work] for line in lines]
                times.append(staged_s(self.plan.schedule, unit_s, self.cost.backward_ratio))
        return max(times)

    def _arranged(self, dealt: Sequence[Sequence[tuple[int, ...]]]) -> Dealt:
        """Light, heavy, light; the lightest last, for a backward takes longer than a forward."""
        found = []
        for batches in dealt:
            order = sorted(batches, key=lambda b: (sum(self.costs[i] for i in b), b))
            found.append((*order[1::2], *order[::2][::-1]))
        return tuple(found)
