"""Answers a question with the full planner, or with the fast one. Pure apart from the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from resihp_plan import ParallelPlan, describe_change
from resihp_plan.planner import Assumptions, Infeasible, Price, plan_after_loss, plan_change
from resihp_scheduler.planning import Choice, JobPlanning, NoPlan
from resihp_scheduler.question import Question

AS_FAST = 0.005
"""If the healthy layout is not slower than this, it is taken instead of another one: everybody knows it. Before a job's
constants are measured it is taken in any case."""


def solve(question: Question, clock: Callable[[], float]) -> Choice | NoPlan:
    """The full search, for losses, slow devices, recoveries and returns alike."""
    planning = JobPlanning(question.spec, question.measured, question.observed)
    healthy = planning.initial()
    try:
        decision = plan_change(
            question.plan,
            planning.model,
            question.cluster,
            question.health,
            planning.workload,
            clock=clock,
            assuming=Assumptions(planning.cost, price=Price(question.horizon_s, question.rebuild_s)),
            reference=healthy,
            epoch=question.epoch,
        )
        choice = planning.choice_of(decision, question.plan, question.speeds, question.alive)
        return _settled(planning, question, healthy, choice)
    except (Infeasible, ValueError) as error:
        return NoPlan(f"planning failed: {error}")


def solve_fast(question: Question, clock: Callable[[], float]) -> Choice | NoPlan:
    """The planner for losses, which knows speeds too: when the full one gave no answer in time."""
    planning = JobPlanning(question.spec, question.measured, question.observed)
    healthy = planning.initial()
    try:
        decision = plan_after_loss(
            question.plan if set(question.plan.active) & question.alive else healthy,
            planning.model,
            question.cluster,
            question.alive,
            planning.workload,
            clock=clock,
            cost=planning.cost,
            health=question.speeds or None,
            reference=healthy,
            require_state=False,
            epoch=question.epoch,
        )
        choice = planning.choice_of(decision, question.plan, question.speeds, question.alive)
        priced = replace(choice, change_s=question.rebuild_s, reason=f"fast planner: {choice.reason}")
        return _settled(planning, question, healthy, priced)
    except (Infeasible, ValueError) as error:
        return NoPlan(f"planning failed: {error}")


def _settled(planning: JobPlanning, question: Question, healthy: ParallelPlan, choice: Choice) -> Choice:
    """The healthy layout if it is as good; staying as such; newcomers without work stand by."""
    old = question.plan
    predicted = choice.predicted_tokens_per_s or 0.0
    if question.alive == set(healthy.world) and not question.speeds:
        known = planning.tokens_per_s(healthy)
        if (
            known >= predicted * (1 - AS_FAST) or question.measured is None
        ) and choice.plan.replicas != healthy.replicas:
            plan = healthy.with_epoch(question.epoch)
            choice = replace(
                choice,
                plan=plan,
                reason=f"the healthy layout: predicted {known:.0f} tokens/s",
                difference=describe_change(old, plan),
                predicted_tokens_per_s=known,
            )
    if choice.plan.replicas == old.replicas and choice.plan.migrations == old.migrations:
        idle = tuple(sorted(question.alive - set(old.active)))
        waiting = replace(old, epoch=question.epoch, standby=idle)
        choice = replace(choice, plan=waiting, stays=True, change_s=0.0, difference=describe_change(old, waiting))
    planning.prove(choice.plan, question.alive)
    return choice
