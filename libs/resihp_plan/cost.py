"""Seconds per operation: the one cost formula for slicing, simulation and planning (design: section 5).

A stage's member computes `fixed + per_token * tokens + per_square * sum l^2`, scaled by its units and divided by its p.
All members of a TP group wait for the slowest, then for the group's collectives. Backward costs `backward_ratio` times
forward. Transfers cost latency plus bytes over bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from resihp_plan.cluster import Health, speed_of
from resihp_plan.layout import unit_shares
from resihp_plan.model import ModelSpec, Split
from resihp_plan.operation import OpKind
from resihp_plan.plan import ReplicaPlan, StagePlan
from resihp_plan.workload import MicroBatchWork


@dataclass(frozen=True)
class Linear:
    """Seconds as a function of a micro-batch."""

    fixed: float = 0.0
    per_token: float = 0.0
    per_square: float = 0.0

    def seconds(self, work: MicroBatchWork) -> float:
        return self.fixed + self.per_token * work.tokens + self.per_square * work.sum_sq_len

    def __add__(self, other: Linear) -> Linear:
        return Linear(self.fixed + other.fixed, self.per_token + other.per_token, self.per_square + other.per_square)

    def scaled(self, factor: float) -> Linear:
        return Linear(self.fixed * factor, self.per_token * factor, self.per_square * factor)


@dataclass(frozen=True)
class StageCost:
    """Cost of a stage per micro-batch: one line per TP member (at its own speed), one for the group's collectives."""

    members: tuple[Linear, ...]
    collectives: Linear
    backward_ratio: float
    weight_share: float = 0.5
    """Of a backward without attention scores, the part that is weight gradients."""

    def member_s(self, member: int, work: MicroBatchWork, *, backward: bool) -> float:
        """Compute seconds of one member, without waiting."""
        return self.members[member].seconds(work) * (self.backward_ratio if backward else 1.0)

    def stage_s(self, work: MicroBatchWork, *, backward: bool) -> float:
        """Seconds during which the group is occupied: slowest member plus collectives."""
        slowest = max(m.seconds(work) for m in self.members) * (self.backward_ratio if backward else 1.0)
        return slowest + self.collectives.seconds(work)

    def member_op_s(self, member: int, work: MicroBatchWork, kind: OpKind) -> float:
        """Compute seconds of one member for an operation. The weight half of a split backward is one of the two matrix
        products of every weight; attention scores have no weights, so their backward is in the input half."""
        if kind is OpKind.FORWARD:
            return self.member_s(member, work, backward=False)
        whole = self.member_s(member, work, backward=True)
        if kind is OpKind.BACKWARD:
            return whole
        line = self.members[member]
        weight = self.weight_share * self.backward_ratio * (line.fixed + line.per_token * work.tokens)
        return weight if kind is OpKind.BACKWARD_WEIGHT else whole - weight

    def stage_op_s(self, work: MicroBatchWork, kind: OpKind) -> float:
        """Seconds during which the group is occupied by an operation: `stage_s`, or its halves. Weight gradients need
        no collective."""
        slowest = max(self.member_op_s(i, work, kind) for i in range(len(self.members)))
        return slowest if kind is OpKind.BACKWARD_WEIGHT else slowest + self.collectives.seconds(work)

    def round_trip(self, work: MicroBatchWork) -> Linear:
        """Forward and backward together: a line that is exact while the slowest member at `work` stays the slowest."""
        slowest = max(self.members, key=lambda m: m.seconds(work))
        return slowest.scaled(1.0 + self.backward_ratio) + self.collectives.scaled(2.0)


@dataclass(frozen=True)
class CostModel:
    """Constants of the cost formula. The defaults of `for_model` rank plans; measured ones replace them later.

    Seconds are those of one healthy device (p = 1) that holds a whole layer, forward direction.
    """

    model: ModelSpec
    attention_s: float
    """Projections of attention, per token and layer."""
    mlp_s: float
    """Gated MLP, per token and layer."""
    square_s: float
    """Attention scores and their product with the values, per squared token of a document and layer."""
    head_s: float
    """Output head and loss, per token. The embedding is a look-up: no cost."""
    fixed_s: float = 0.0
    """Per layer and micro-batch, whatever its size (kernel launches)."""
    backward_ratio: float = 2.0
    """Two matrix products per forward one."""
    collective_latency_s: float = 0.0
    """Per collective of two inside a TP group or over bucket owners."""
    latency_growth: float = 0.0
    """The power of the members with which that latency grows: 0 for links that do all at once, 1 for a ring, which has
    as many rounds as members, and for one step in which everybody sends to everybody (what CPU workers do with small
    tensors, 0.90 measured), up to 2 where the members of a round also wait for each other's core (gloo's rings)."""
    transfer_latency_s: float = 0.0
    """Per pipeline transfer."""
    bytes_per_s: float = float("inf")
    """Of one link, in one direction."""
    tp_bytes_per_s: float | None = None
    """Of the links inside a TP group (NVLink and the like); None: `bytes_per_s`."""
    uneven_penalty: float = 0.0
    """Relative slowdown of compute in a TP group whose shares are not equal (kernels for odd sizes)."""
    bytes_per_element: int = 4
    link_of: Mapping[int, float] = field(default_factory=dict)
    """Rank -> bandwidth of its way to other stages and replicas, relative to `bytes_per_s`; ranks that are missing have
    1. A transfer is as fast as the slowest of its ends."""

    def link(self, ranks: Iterable[int]) -> float:
        """Relative bandwidth of the slowest of these ranks."""
        return min((self.link_of.get(r, 1.0) for r in ranks), default=1.0) if self.link_of else 1.0

    @classmethod
    def for_model(
        cls,
        model: ModelSpec,
        *,
        flops_per_s: float = 4e10,
        collective_latency_s: float = 5e-5,
        transfer_latency_s: float = 5e-5,
        bytes_per_s: float = 3e9,
        tp_bytes_per_s: float | None = None,
        uneven_penalty: float = 0.0,
        bytes_per_element: int = 4,
    ) -> CostModel:
        """Constants from operation counts (2 per multiply-add).

        Defaults rank plans for devices that do not share a core. One CPU core trains 1,024 tokens of a 1.7 M parameter
        model in 236 ms (measured), i.e. some 4e10 operations/s; latency and bandwidth are those of a loopback or
        node-local link that does not wait for a core (order of magnitude; calibration replaces them).
        """
        d, hd = model.hidden, model.head_dim
        projections = 2 * d * hd * (2 * model.num_heads + 2 * model.num_kv_heads)
        return cls(
            model=model,
            attention_s=projections / flops_per_s,
            mlp_s=2 * 3 * d * model.ffn_hidden / flops_per_s,
            # scores and weighted values: 2 products of 2 l^2 hd operations per head, half of them above the diagonal
            square_s=2 * model.num_heads * hd / flops_per_s,
            head_s=2 * d * model.vocab_size / flops_per_s,
            collective_latency_s=collective_latency_s,
            transfer_latency_s=transfer_latency_s,
            bytes_per_s=bytes_per_s,
            tp_bytes_per_s=tp_bytes_per_s,
            uneven_penalty=uneven_penalty,
            bytes_per_element=bytes_per_element,
            backward_ratio=3.0 if model.recompute else 2.0,  # the forward once more
        )

    def layer_s(self, work: MicroBatchWork) -> float:
        """Forward seconds of one whole layer on one healthy device."""
        return self.fixed_s + (self.attention_s + self.mlp_s) * work.tokens + self.square_s * work.sum_sq_len

    def stage_cost(self, stage: StagePlan, *, last: bool, health: Health | None = None) -> StageCost:
        """Cost of a stage. `health`: rank -> p (1 where missing). Raises ValueError for a device with p = 0."""
        layers = stage.layer_stop - stage.layer_start
        units = {s: unit_shares(stage, self.model, s) for s in (Split.ATTENTION, Split.MLP, Split.VOCAB)}
        uneven = any(len(set(u)) > 1 for u in units.values())
        slowdown = 1.0 + self.uneven_penalty if uneven else 1.0
        return StageCost(
            members=tuple(
                self._member(layers, {s: u[t] / sum(u) for s, u in units.items()}, last).scaled(
                    slowdown / speed_of(rank, health)
                )
                for t, rank in enumerate(stage.ranks)
            ),
            collectives=self._collectives(layers, len(stage.ranks), last),
            backward_ratio=self.backward_ratio,
            weight_share=1 / 3 if self.model.recompute else 0.5,
        )

    def _member(self, layers: int, share: Mapping[Split, float], last: bool) -> Linear:
        per_token = layers * (self.attention_s * share[Split.ATTENTION] + self.mlp_s * share[Split.MLP])
        return Linear(
            fixed=layers * self.fixed_s,
            per_token=per_token + (self.head_s * share[Split.VOCAB] if last else 0.0),
            per_square=layers * self.square_s * share[Split.ATTENTION],
        )

    def _collectives(self, layers: int, degree: int, last: bool) -> Linear:
        """Two all-reduces of the activations per layer and direction; with the head one more."""
        if degree == 1:
            return Linear()
        count = 2 * layers + (1 if last else 0)
        activation = self.model.hidden * self.bytes_per_element
        return Linear(
            fixed=count * self.latency_s(degree),
            per_token=count * _ring(degree) * activation / (self.tp_bytes_per_s or self.bytes_per_s),
        )

    def latency_s(self, members: int) -> float:
        """Of one collective."""
        return self.collective_latency_s * float(max(1.0, members / 2) ** self.latency_growth)

    def transfer_s(self, num_senders: int, num_receivers: int, tokens: int, link: float = 1.0) -> float:
        """A pipeline transfer of activations (or their gradients), with the all-gather of unequal degrees. `link`: of
        all members on both sides."""
        size = tokens * self.model.hidden * self.bytes_per_element
        if num_senders == num_receivers:
            return self.transfer_latency_s + size / (self.bytes_per_s * link)
        chunk = size / max(num_senders, num_receivers)
        gather = 0.0
        if num_receivers > 1:
            inside = self.tp_bytes_per_s or self.bytes_per_s
            gather = self.latency_s(num_receivers) + size * (num_receivers - 1) / num_receivers / inside
        return self.transfer_latency_s + chunk / (self.bytes_per_s * link) + gather

    def all_reduce_s(self, num_owners: int, num_elements: int, link: float = 1.0) -> float:
        """Ring all-reduce over the owners of a bucket; 0 for one owner. `link`: of the owners."""
        if num_owners < 2:
            return 0.0
        size = num_elements * self.bytes_per_element
        return self.latency_s(num_owners) + _ring(num_owners) * size / (self.bytes_per_s * link)

    def stage_lines(self, replica: ReplicaPlan, work: MicroBatchWork, health: Health | None = None) -> list[Linear]:
        """Forward and backward of a micro-batch in every stage (`StageCost.round_trip` at `work`)."""
        last = len(replica.stages) - 1
        return [
            self.stage_cost(st, last=s == last, health=health).round_trip(work) for s, st in enumerate(replica.stages)
        ]

    def pace_line(self, replica: ReplicaPlan, work: MicroBatchWork, health: Health | None = None) -> Linear:
        """Of the stage that is slowest at `work`: the pace of a full pipeline."""
        return max(self.stage_lines(replica, work, health), key=lambda line: line.seconds(work))


def _ring(members: int) -> float:
    """Bytes that cross each link per byte reduced: reduce-scatter plus all-gather."""
    return 2.0 * (members - 1) / members
