"""Whether a rank may use a plan that its agent sent."""

from __future__ import annotations

from collections.abc import Collection

from resihp_messages.link import InstallPlan
from resihp_plan import InvalidPlan, ModelSpec, ParallelPlan, validate


class PlanUnusable(Exception):
    """A plan that this rank must not install; nothing changed. The text says why."""


def accept(
    command: InstallPlan,
    *,
    rank: int,
    model: ModelSpec,
    num_micro_batches: int,
    newest_epoch: int,
    dead_ranks: Collection[int],
) -> ParallelPlan:
    """The plan of `command`, checked: intact, newer than `newest_epoch`, with this rank, without dead ones, and valid
    for the job. Raises `PlanUnusable`.
    """
    plan = _parse(command.plan)
    if plan.digest != command.digest or plan.epoch != command.epoch:
        raise PlanUnusable(
            f"digest: the plan is {plan.digest[:16]} of epoch {plan.epoch}, "
            f"the command says {command.digest[:16]} of epoch {command.epoch}"
        )
    if plan.epoch <= newest_epoch:
        raise PlanUnusable(f"epoch: {plan.epoch} is not newer than {newest_epoch}")
    if rank not in plan.world:
        raise PlanUnusable(f"world: rank {rank} is not in {list(plan.world)}")
    dead = sorted({*dead_ranks, *command.dead_ranks} & set(plan.world))
    if dead:
        raise PlanUnusable(f"world: ranks {dead} are dead")
    try:
        validate(plan, model, num_micro_batches=num_micro_batches)
    except InvalidPlan as error:
        raise PlanUnusable(str(error)) from error
    return plan


def base_plans(command: InstallPlan) -> tuple[ParallelPlan, ...]:
    """Plans in whose layout a rank may still hold state. Raises `PlanUnusable`."""
    return tuple(_parse(data) for data in command.base_plans)


def _parse(data: object) -> ParallelPlan:
    try:
        return ParallelPlan.from_dict(data)  # type: ignore[arg-type]  # from_dict checks
    except InvalidPlan as error:
        raise PlanUnusable(str(error)) from error
