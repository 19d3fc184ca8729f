"""Whether a rank may use a plan that its agent sent."""

from __future__ import annotations

from collections.abc import Mapping

from resihp_messages.link import InstallPlan
from resihp_messages.placement import starts_of
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
    dead: Mapping[int, int],
) -> ParallelPlan:
    """The plan of `command`, checked: intact, newer than `newest_epoch`, with this rank, without dead ones, and valid
    for the job. `dead`: rank -> its newest start that is gone; a later start of the rank may be used.

    Raises `PlanUnusable`.
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
    starts = starts_of(command.placement)
    gone = sorted(r for r in plan.world if r in command.dead_ranks or dead.get(r, -1) >= starts.get(r, 0))
    if gone:
        raise PlanUnusable(f"world: ranks {gone} are dead")
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
