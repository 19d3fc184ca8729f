"""What share of the model's work each device has under a plan, so that healthy time survives a change of layout.

Work is counted in whole layers on one device: a device that holds half of the attention heads and MLP units of four
layers does `0.5 x 4` layers' work per token. Then seconds per unit of work do not depend on the layout, peers with
unequal shares can be compared, and a new epoch is judged with the healthy time of the old one. The shares come from
the one cost formula (`resihp_plan.CostModel`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resihp_plan import CostModel, ModelSpec, ParallelPlan


@dataclass(frozen=True)
class Share:
    """Of one active device."""

    group: str
    """Its peers: the same stage of all replicas."""
    per_token: float
    """Whole layers, per token and per micro-batch (the output head counts as a part of one). One number for both: in
    work packed to a fixed budget nobody can tell the two apart, so they must be carried over alike."""
    per_square: float
    """Whole layers' attention, per squared token of a document."""
    fraction: float = 1.0
    """Of each layer of its stage: seconds per unit of work may depend on it."""

    def work(self, num_units: int, tokens: int, sum_sq_len: int) -> tuple[float, float, float]:
        """Features of `DeviceLevel`: micro-batches, tokens, squared lengths, each in whole layers."""
        return num_units * self.per_token, tokens * self.per_token, sum_sq_len * self.per_square


def shares(plan: ParallelPlan, model: ModelSpec) -> Mapping[int, Share]:
    """Rank -> share, of every active rank of a valid plan."""
    cost = CostModel.for_model(model)
    found = {}
    for replica in plan.replicas:
        for s, stage in enumerate(replica.stages):
            lines = cost.stage_cost(stage, last=s == len(replica.stages) - 1).members
            for rank, line in zip(stage.ranks, lines, strict=True):
                squares = line.per_square / cost.square_s
                found[rank] = Share(
                    f"s{s}",
                    line.per_token / (cost.attention_s + cost.mlp_s),
                    squares,
                    squares / (stage.layer_stop - stage.layer_start),
                )
    return found


def peer_groups(found: Mapping[int, Share]) -> dict[str, tuple[str, ...]]:
    """Group -> device names (ranks as text), in order of ranks."""
    groups: dict[str, list[str]] = {}
    for rank in sorted(found):
        groups.setdefault(found[rank].group, []).append(str(rank))
    return {group: tuple(groups[group]) for group in sorted(groups)}
