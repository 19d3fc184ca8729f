"""Constants of the cost model for one job: nominal ones, or those measured on its own healthy iterations.

On the virtual clock the nominal work *is* the computing time; what remains to be measured there is what the host adds:
the latency of collectives, and the part of an iteration outside the pipelines. On real devices the computing time is
measured too. One place: whoever predicts for a job asks here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from resihp_messages import JobSpec
from resihp_plan import CostModel, ModelSpec, Workload


@dataclass(frozen=True)
class Calibration:
    """What was measured. Seconds."""

    compute_scale: float
    """Measured computing time over the nominal one."""
    backward_ratio: float
    latency_s: float
    """Per collective and pipeline transfer."""
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
    if spec.clock.virtual:
        return CostModel.for_model(model, bytes_per_element=element, flops_per_s=spec.clock.flops_per_s)
    return CostModel.for_model(model, bytes_per_element=element)


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
        transfer_latency_s=measured.latency_s,
    )


def workload_of(spec: JobSpec, measured: Calibration | None) -> Workload:
    """A typical global batch of the job."""
    batch = spec.batch
    if measured is None:
        return Workload.typical(batch.micro_batches, batch.tokens_per_micro_batch)
    return Workload(batch.micro_batches, measured.tokens_per_micro_batch, measured.sum_sq_len_per_micro_batch)
