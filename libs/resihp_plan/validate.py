"""Rules that every plan keeps. Errors: `InvalidPlan`, whose text is `rule: values`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from resihp_plan.layout import unit_shares
from resihp_plan.memory import MemoryModel
from resihp_plan.model import ModelSpec, Split
from resihp_plan.plan import InvalidPlan, ParallelPlan, StagePlan


def validate(
    plan: ParallelPlan,
    model: ModelSpec,
    *,
    alive: Collection[int] | None = None,
    num_micro_batches: int | None = None,
    memory: MemoryModel | None = None,
) -> None:
    """Raise `InvalidPlan` at the first broken rule.

    `alive`: ranks that may be used; `num_micro_batches`: of the global batch; `memory`: model with limits. Without one
    of them its rule is not checked.
    """
    if plan.epoch < 0:
        raise InvalidPlan(f"epoch: must not be negative, got {plan.epoch}")
    if not plan.replicas:
        raise InvalidPlan("replicas: a plan needs at least one")
    _check_ranks(plan, alive)
    for rank, thousandths in plan.speeds:
        if thousandths < 1:
            raise InvalidPlan(f"speeds: rank {rank} has {thousandths} thousandths; at least 1")
    for a in range(len(plan.replicas)):
        _check_layers(plan, a, model)
        _check_stages(plan, a, model)
    _check_micro_batches(plan, num_micro_batches)
    _check_migrations(plan)
    if memory is not None:
        for rank, needed, limit in memory.excess(plan):
            raise InvalidPlan(f"memory: rank {rank} needs {needed} bytes and has {limit}")


def _check_ranks(plan: ParallelPlan, alive: Collection[int] | None) -> None:
    counts = Counter((*plan.active, *plan.standby))
    for rank, count in sorted(counts.items()):
        if rank < 0:
            raise InvalidPlan(f"ranks: must not be negative, got {rank}")
        if count > 1:
            raise InvalidPlan(f"ranks: rank {rank} is used {count} times")
        if alive is not None and rank not in alive:
            raise InvalidPlan(f"ranks: rank {rank} is not alive (alive: {sorted(alive)})")


def _check_layers(plan: ParallelPlan, a: int, model: ModelSpec) -> None:
    """Contiguous, complete, no empty stage: so every layer is there exactly once."""
    stages = plan.replicas[a].stages
    ranges = [(st.layer_start, st.layer_stop) for st in stages]
    expected = 0
    for start, stop in ranges:
        if start != expected or stop <= start:
            raise InvalidPlan(f"layers: R{a} has {ranges}; ranges must follow each other from 0 and not be empty")
        expected = stop
    if expected != model.num_layers:
        raise InvalidPlan(f"layers: R{a} has {ranges}; they must end at num_layers = {model.num_layers}")


def _check_stages(plan: ParallelPlan, a: int, model: ModelSpec) -> None:
    stages = plan.replicas[a].stages
    for s, stage in enumerate(stages):
        name = f"R{a}.S{s}"
        if not stage.ranks:
            raise InvalidPlan(f"ranks: {name} has none")
        if len(stage.weights) != len(stage.ranks):
            raise InvalidPlan(f"weights: {name} has {len(stage.weights)} for {len(stage.ranks)} ranks")
        if min(stage.weights) < 0 or sum(stage.weights) == 0:
            raise InvalidPlan(f"weights: {name} has {stage.weights}; none may be negative, the sum must be positive")
        _check_units(name, stage, model)


def _check_units(name: str, stage: StagePlan, model: ModelSpec) -> None:
    """A member may have no head group or vocabulary block if its weight is too small for one, but not nothing."""
    for rank, units in zip(stage.ranks, unit_shares(stage, model, Split.MLP), strict=True):
        if units == 0:
            raise InvalidPlan(
                f"shares: rank {rank} of {name} gets none of {model.num_units(Split.MLP)} {Split.MLP} units "
                f"with weights {stage.weights}"
            )


def _check_micro_batches(plan: ParallelPlan, expected: int | None) -> None:
    counts = [rep.num_micro_batches for rep in plan.replicas]
    if min(counts) < 0:
        raise InvalidPlan(f"micro-batches: must not be negative, got {counts}")
    if sum(counts) < 1:
        raise InvalidPlan("micro-batches: a plan needs at least one")
    if expected is not None and sum(counts) != expected:
        raise InvalidPlan(f"micro-batches: {counts} add up to {sum(counts)}, the global batch has {expected}")


def _check_migrations(plan: ParallelPlan) -> None:
    """A unit is executed by devices that hold the same layers, under the same stage number."""
    seen: set[tuple[int, int, int]] = set()
    for m in plan.migrations:
        name = f"(R{m.replica}.S{m.stage} m{m.micro_batch} on R{m.executor})"
        for what, replica in (("replica", m.replica), ("executor", m.executor)):
            if not 0 <= replica < len(plan.replicas):
                raise InvalidPlan(f"migrations: {name} names {what} {replica} of {len(plan.replicas)}")
            if not 0 <= m.stage < len(plan.replicas[replica].stages):
                raise InvalidPlan(f"migrations: {name}, but R{replica} has {len(plan.replicas[replica].stages)} stages")
        if m.executor == m.replica:
            raise InvalidPlan(f"migrations: {name} stays where it is")
        if not 0 <= m.micro_batch < plan.replicas[m.replica].num_micro_batches:
            count = plan.replicas[m.replica].num_micro_batches
            raise InvalidPlan(f"migrations: {name}, but R{m.replica} has {count} micro-batches")
        unit = (m.replica, m.stage, m.micro_batch)
        if unit in seen:
            raise InvalidPlan(f"migrations: {name} is given away twice")
        seen.add(unit)
        own, other = (plan.replicas[r].stages[m.stage] for r in (m.replica, m.executor))
        if (own.layer_start, own.layer_stop) != (other.layer_start, other.layer_stop):
            raise InvalidPlan(
                f"migrations: {name}, but its layers are {own.layer_start}-{own.layer_stop} "
                f"and the executor holds {other.layer_start}-{other.layer_stop}"
            )
