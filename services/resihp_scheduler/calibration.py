"""Constants of the cost model for one job: nominal ones, or those measured on its own healthy iterations.

On the virtual clock the nominal work *is* the computing time; what remains to be measured there is what the host adds:
the latency of collectives, and the part of an iteration outside the pipelines. On real devices the computing time is
measured too. One place: whoever predicts for a job asks here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Self

from resihp_messages import JobSpec
from resihp_plan import CostModel, ModelSpec, ParallelPlan, Workload
from resihp_plan.cluster import Health
from resihp_plan.cost import Linear
from resihp_plan.planner import predict
from resihp_scheduler.meter import Measured, RankSeconds

LATENCY_S = 1e-3
"""Of a gloo collective between two processes that share cores with others: 1.5 to 2.6 ms were measured with eight
workers on two busy cores."""
LARGEST = 64
"""Up to so many devices a whole iteration is simulated to find what the host adds."""
FEWEST = 5
"""Iterations."""


def describes_devices(spec: JobSpec) -> bool:
    """Whether what this job's iterations measure are constants of devices that work independently.

    On the virtual clock and on GPUs they do. The workers of the CPU backend share the cores of their host: there a
    plan that leaves workers idle is faster, which says nothing about a cluster; nominal constants stay.
    """
    return not spec.shares_cores and spec.attached is None


@dataclass(frozen=True)
class Calibration:
    """What was measured. Seconds."""

    compute_scale: float
    """Measured computing time over the nominal one."""
    backward_ratio: float
    latency_s: float
    """Per collective of two and pipeline transfer; collectives of more take rounds (`CostModel.latency_growth`)."""
    overhead_s: float
    """Per iteration, outside pipelines and gradient synchronisation: slicing, optimizer, scheduling of the host."""
    tokens_per_micro_batch: int
    sum_sq_len_per_micro_batch: int
    num_iterations: int
    """How many iterations were measured."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        return cls(**values)


def nominal_cost(spec: JobSpec, model: ModelSpec) -> CostModel:
    """Before anything is measured: operation counts, at the speed of the job's virtual devices if it has them."""
    element = 8 if spec.dtype == "float64" else 4
    if not spec.clock.virtual:
        return CostModel.for_model(model, bytes_per_element=element)
    virtual = CostModel.for_model(
        model,
        flops_per_s=spec.clock.flops_per_s,
        collective_latency_s=LATENCY_S,
        transfer_latency_s=LATENCY_S,
        bytes_per_element=element,
    )
    return replace(virtual, latency_growth=1.0)


def calibrated_cost(spec: JobSpec, model: ModelSpec, measured: Calibration | None) -> CostModel:
    """The constants to predict with."""
    nominal = nominal_cost(spec, model)
    if measured is None:
        return nominal
    scale = measured.compute_scale
    return replace(
        nominal,
        attention_s=nominal.attention_s * scale,
        mlp_s=nominal.mlp_s * scale,
        square_s=nominal.square_s * scale,
        head_s=nominal.head_s * scale,
        fixed_s=nominal.fixed_s * scale,
        backward_ratio=measured.backward_ratio,
        collective_latency_s=measured.latency_s,
        latency_growth=1.0,
        transfer_latency_s=measured.latency_s,
    )


def workload_of(spec: JobSpec, measured: Calibration | None) -> Workload:
    """A typical global batch of the job."""
    batch = spec.batch
    if measured is None:
        return Workload.typical(batch.micro_batches, batch.tokens_per_micro_batch)
    return Workload(batch.micro_batches, measured.tokens_per_micro_batch, measured.sum_sq_len_per_micro_batch)


def calibrate(
    spec: JobSpec, plan: ParallelPlan, iterations: Sequence[Measured], health: Health | None = None
) -> Calibration | None:
    """Constants from iterations that ran `plan` on devices of these speeds; None from too few of them."""
    if len(iterations) < FEWEST:
        return None
    model = ModelSpec(**spec.model.model_dump())
    nominal = replace(nominal_cost(spec, model), latency_growth=1.0)
    lines = _lines(plan, nominal, health)
    computed = [(m.ranks[r], lines[r]) for m in iterations for r in lines]
    expected_s = sum(_seconds(line, seconds) for seconds, line in computed)
    forward_s = sum(seconds.forward_s for seconds, _ in computed)
    heads = [m.ranks[a.stages[0].ranks[0]] for m in iterations for a in plan.replicas]
    num_units = sum(head.num_units for head in heads)
    if expected_s <= 0.0 or forward_s <= 0.0 or not num_units:
        return None
    found = Calibration(
        compute_scale=forward_s / expected_s,
        backward_ratio=sum(seconds.backward_s for seconds, _ in computed) / forward_s,
        latency_s=_latency_s(plan, iterations, nominal),
        overhead_s=0.0,
        tokens_per_micro_batch=round(sum(head.tokens for head in heads) / num_units),
        sum_sq_len_per_micro_batch=round(sum(head.sum_sq_len for head in heads) / num_units),
        num_iterations=len(iterations),
    )
    if len(plan.world) > LARGEST or plan.migrations:
        return found
    typical = workload_of(spec, found)
    predicted_s = predict(plan, typical, calibrated_cost(spec, model, found), health=health).step_s
    return replace(found, overhead_s=max(0.0, median(m.step_s for m in iterations) - predicted_s))


def _seconds(line: Linear, rank: RankSeconds) -> float:
    """Expected seconds of a rank's forwards together: the line is linear in the sums."""
    return line.fixed * rank.num_units + line.per_token * rank.tokens + line.per_square * rank.sum_sq_len


def _lines(plan: ParallelPlan, cost: CostModel, health: Health | None) -> dict[int, Linear]:
    """Rank -> its nominal seconds of a forward."""
    found: dict[int, Linear] = {}
    for replica in plan.replicas:
        for s, stage in enumerate(replica.stages):
            members = cost.stage_cost(stage, last=s == len(replica.stages) - 1, health=health).members
            found.update(zip(stage.ranks, members, strict=True))
    return found


def _latency_s(plan: ParallelPlan, iterations: Sequence[Measured], cost: CostModel) -> float:
    """Wait per collective inside TP groups, without what its bytes explain; the nominal one without such groups."""
    waits = []
    for replica in plan.replicas:
        for s, stage in enumerate(replica.stages):
            if len(stage.ranks) == 1:
                continue
            line = cost.stage_cost(stage, last=s == len(replica.stages) - 1).collectives
            count = line.fixed / cost.collective_latency_s  # in units of a collective of two
            for m in iterations:
                for rank in stage.ranks:
                    seconds = m.ranks[rank]
                    if seconds.num_units:
                        bytes_s = 2 * line.per_token * seconds.tokens
                        waits.append((seconds.tp_wait_s - bytes_s) / (2 * count * seconds.num_units))
    return max(0.0, median(waits)) if waits else cost.collective_latency_s


def speeds_in(
    spec: JobSpec, plan: ParallelPlan, iterations: Sequence[Measured], measured: Calibration
) -> dict[int, float]:
    """Rank -> p in these iterations: expected over measured computing time, the median over them."""
    model = ModelSpec(**spec.model.model_dump())
    lines = _lines(plan, calibrated_cost(spec, model, measured), None)
    found = {}
    for rank, line in lines.items():
        rows = [m.ranks[rank] for m in iterations]
        ratios = [_seconds(line, row) / row.forward_s for row in rows if row.forward_s > 0.0]
        if ratios:
            found[rank] = median(ratios)
    return found
