"""The paper's models and degrees on 8-GPU nodes (section 8), and a cost model of an A100 cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from resihp_plan import Cluster, CostModel, Device, MemoryModel, ModelSpec, ParallelPlan, Schedule, Workload
from resihp_plan.planner import plan_initial
from resihp_plan.planner.choose import tuned
from resihp_plan.planner.policies import Arena

TOKENS = 4096
SCHEDULES = Schedule.ONE_F_ONE_B.family
"""Everybody's choice: 1F1B with 0, 1 or 2 more micro-batches in flight."""
MEMORY_BYTES = 74 * 10**9
"""Usable of 80 GB."""
STATE_COPIES = 9
"""18 bytes per parameter in mixed precision, in elements of 2 bytes."""


def llama(layers: int, hidden: int, heads: int, ffn: int, kv: int | None = None) -> ModelSpec:
    return ModelSpec(
        num_layers=layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=kv or heads,
        ffn_hidden=ffn,
        mlp_block=128,
        vocab_size=32_000,
        vocab_block=128,
    )


MODELS: Mapping[str, ModelSpec] = {
    "7B": llama(32, 4096, 32, 11_008),
    "13B": llama(40, 5120, 40, 13_824),
    "30B": llama(60, 6656, 52, 17_920),
    "70B": llama(80, 8192, 64, 28_672, 8),
}


@dataclass(frozen=True)
class Setting:
    """One row of the paper's table of settings, with one number of micro-batches per replica."""

    model: str
    tp: int
    dp: int
    pp: int
    per_replica: int
    regime: str
    uneven_penalty: float = 0.0
    schedules: tuple[Schedule, ...] = SCHEDULES

    @property
    def name(self) -> str:
        return f"{self.model} {self.regime}"

    @cached_property
    def cluster(self) -> Cluster:
        number = self.tp * self.dp * self.pp
        return Cluster(tuple(Device(r, f"n{r // 8}", MEMORY_BYTES) for r in range(number)))

    @cached_property
    def workload(self) -> Workload:
        return Workload.typical(self.per_replica * self.dp, TOKENS, documents_per_micro_batch=1)

    @cached_property
    def cost(self) -> CostModel:
        return CostModel.for_model(
            MODELS[self.model],
            flops_per_s=312e12 * 0.42,  # A100, 42 % kernel efficiency
            collective_latency_s=2e-5,
            transfer_latency_s=2e-5,
            bytes_per_s=22e9,  # 200 Gb/s InfiniBand
            tp_bytes_per_s=200e9,  # NVSwitch
            bytes_per_element=2,
            uneven_penalty=self.uneven_penalty,
        )

    @cached_property
    def memory(self) -> MemoryModel:
        limits = self.cluster.memory_of
        return MemoryModel(MODELS[self.model], TOKENS, limits, bytes_per_element=2, state_copies=STATE_COPIES)

    @cached_property
    def healthy(self) -> tuple[ParallelPlan, float]:
        """Healthy plan for these degrees, tuned in layers and schedule, and its seconds."""
        model = MODELS[self.model]
        even = plan_initial(self.cluster, model, self.tp, self.pp, self.dp, self.workload.num_micro_batches)
        return tuned(even, self.cluster, self.workload, self.cost, memory=self.memory, schedules=self.schedules)

    @cached_property
    def arena(self) -> Arena:
        return Arena(self.healthy[0], self.cluster, self.workload, self.cost, self.memory, schedules=self.schedules)


def settings(uneven_penalty: float = 0.0) -> tuple[Setting, ...]:
    """Every model with the paper's micro-batches per replica and with 4 per stage."""
    table = (("7B", 4, 2, 2, 4), ("13B", 4, 2, 4, 8), ("30B", 4, 2, 8, 8), ("70B", 4, 4, 16, 16))
    return tuple(
        Setting(model, tp, dp, pp, count, regime, uneven_penalty)
        for model, tp, dp, pp, paper in table
        for regime, count in (("paper", paper), ("4pp", 4 * pp))
    )


def paper_setting(model: str) -> Setting:
    """With the paper's number of micro-batches."""
    return next(s for s in settings() if s.name == f"{model} paper")
