"""Runs one script on real workers: draws the plans, strikes when the script says so, takes lost ranks back."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection
from dataclasses import replace
from random import Random

from resihp_messages import ScriptedFault
from resihp_messages.link import Finished, FinishNow, Hello, IterationCommitted
from resihp_messages.page import PageState
from resihp_plan import (
    Cluster,
    ModelSpec,
    ParallelPlan,
    Workload,
    check_program,
    describe_plan,
    layout,
    program,
    transfers,
)
from resihp_plan.planner import Infeasible, plan_after_loss
from resihp_plan.random_plan import Variation, is_valid, random_plan, vary
from resihp_trainer.trials.script import Change, Loss, Rejoin, Script, Strike
from resihp_trainer.trials.trainer_job import TrainerJob, TrialFailed

SEQUENCE_LIMIT_S = 150.0
"""A sequence that takes longer hangs (a live lock would go on for ever)."""
PHASE_LIMIT_S = 60.0
"""A rank that does not get to the phase in which it is to die, within this time, hangs."""
LOOK_EVERY_S = 0.0003
_PHASES = {
    Strike.REBUILDING: PageState.REBUILDING,
    Strike.MOVING: PageState.MOVING,
    Strike.REDOING: PageState.TRAINING,
}
_TRIES = 30


class Sequence:
    """One job from its first plan to its end. Raises `TrialFailed` if it hangs, or if anybody dies unasked."""

    def __init__(self, job: TrainerJob, model: ModelSpec, script: Script, *, limit_s: float = SEQUENCE_LIMIT_S) -> None:
        self.job, self.model, self.script, self.limit_s = job, model, script, limit_s
        self.log: list[str] = []
        """Every plan that was delivered, and every death, in order."""
        self._rng: Random = script.draws()
        self._events = list(script.events)
        self._pending = [e for e in script.events if isinstance(e, Loss)]
        """Losses of which not every victim is dead."""
        self._joining: tuple[int, ...] = ()
        self.deaths: list[int] = []
        """Ranks, in order."""
        self._began_s = time.monotonic()

    def run(self) -> None:
        """Returns when every worker has finished."""
        self._deliver(self._draw(range(self.script.num_ranks), epoch=1), "initial")
        self.job.run(self._on_loss, self._on_pump)

    @property
    def skipped(self) -> int:
        """Victims and changes for which the job ended too early."""
        changes = sum(not isinstance(event, Loss) for event in self._events) + bool(self._joining)
        return changes + sum(len(loss.victims) for loss in self._pending)

    # --- what the job asks ----------------------------------------------------------------------------------------

    def _on_loss(self, plan: ParallelPlan, dead: list[int]) -> ParallelPlan:
        self._note(f"dead {dead}")
        self._bury(dead)
        alive = set(self.job.workers)
        self._strike_while_leaving(dead)
        found = self._recovery(plan, dead, alive)
        self._note(f"recovery: {describe_plan(found)}")
        return found

    def _on_pump(self) -> None:
        if time.monotonic() - self._began_s > self.limit_s:
            raise TrialFailed(f"not over after {self.limit_s} s; {self.job.situation()}")
        if self._is_ending():
            self._dismiss_newcomers()
            return
        self._strike_in_phase()
        self._help_late_faults()
        if self._joining:
            self._take_in()
        elif self._events and self.committed >= self._events[0].iteration and self._is_settled():
            self._begin(self._events.pop(0))

    @property
    def committed(self) -> int:
        """The newest iteration that anybody reported."""
        return max((self.job.committed(rank) for rank in self.job.workers), default=0)

    # --- events ---------------------------------------------------------------------------------------------------

    def _begin(self, event: Change | Loss | Rejoin) -> None:
        match event:
            case Change():
                self._change(event.what)
            case Rejoin():
                for rank in event.ranks:
                    self.job.start(rank)
                self._joining = event.ranks
            case Loss():
                pass  # its victims, `_strike_in_phase` and `_help_late_faults` see to it

    def _change(self, what: Variation) -> None:
        newest = self.job.plans[-1]
        epoch = newest.epoch + 1
        for _ in range(_TRIES):
            plan = vary(self._rng, self.model, newest, what)
            if is_valid(plan, self.model, newest.num_micro_batches) and self._outlives_the_script(plan):
                break
        else:
            plan = self._draw(newest.world, epoch)
        self._deliver(plan, "planned")

    def _take_in(self) -> None:
        """All that were started again say hello, then a planned change takes them in, with all others that live."""
        self._joining = tuple(rank for rank in self._joining if rank in self.job.workers)
        if all(self.job.last(rank, Hello) for rank in self._joining) and self._is_settled():
            if self._joining:
                self._deliver(self._draw(sorted(self.job.workers), self.job.plans[-1].epoch + 1), "planned")
            self._joining = ()

    def _is_settled(self) -> bool:
        """Nothing is open: the newest plan is in use, and every scripted death so far was noticed."""
        newest = self.job.plans[-1]
        return bool(self.job.all(IterationCommitted, newest.epoch)) and not self._overdue()

    def _is_ending(self) -> bool:
        return any(self.job.last(rank, Finished) for rank in self.job.frames)

    def _dismiss_newcomers(self) -> None:
        """The job ended before their plan came into use, which their agents would tell them."""
        waiting = set(self.job.workers) - set(self.job.last_plan.world)
        if waiting == set(self.job.workers):
            self.job.send(waiting, FinishNow())
            self._joining = ()

    # --- deaths ---------------------------------------------------------------------------------------------------

    def _overdue(self) -> list[Loss]:
        return [loss for loss in self._pending if loss.iteration <= self.committed]

    def _bury(self, dead: Collection[int]) -> None:
        self.deaths += dead
        remaining = []
        left = list(dead)
        for loss in self._pending:
            here = set(loss.victims) & set(left)
            left = [rank for rank in left if rank not in here]
            alive = tuple(f for f in loss.faults if f.rank not in here)
            second = None if loss.second in here else loss.second
            if alive or second is not None:
                remaining.append(replace(loss, faults=alive, second=second))
        if left:
            raise TrialFailed(f"ranks {left} died, which no script asked for: {self.job.logs(left)}")
        self._pending = remaining

    def _begun(self) -> Loss | None:
        """The loss whose first victim is dead and whose second one, from outside, is not."""
        return next((x for x in self._pending if x.second is not None and not x.faults), None)

    def _strike_while_leaving(self, dead: Collection[int]) -> None:
        loss = self._begun()
        if loss is not None and loss.strike is Strike.LEAVING:
            self._kill(loss.second)

    def _strike_in_phase(self) -> None:
        """Watch the second victim closely from the moment at which the recovery plan is out."""
        loss = self._begun()
        if loss is None or loss.second not in self.job.workers or loss.strike not in _PHASES:
            return
        page, epoch, state = self.job.workers[loss.second].page, self.job.plans[-1].epoch, _PHASES[loss.strike]
        deadline = time.monotonic() + PHASE_LIMIT_S
        while not ((seen := page.read()).epoch == epoch and seen.state >= state):
            if time.monotonic() > deadline:
                raise TrialFailed(f"rank {loss.second} does not get to {state.name}; {self.job.situation()}")
            time.sleep(LOOK_EVERY_S)
        self._kill(loss.second)

    def _help_late_faults(self) -> None:
        """A victim whose iteration was committed without it getting to its point (it was settled by others, or the
        victim had not joined yet) is struck from outside: every scripted fault strikes."""
        for loss in self._overdue():
            for fault in loss.faults:
                if loss.iteration < self.committed:
                    self._inflict(fault)

    def _inflict(self, fault: ScriptedFault) -> None:
        worker = self.job.workers.get(fault.rank)
        if worker is None or worker.state() in ("T", "Z", ""):
            return
        self._note(f"late: {fault.kind} {fault.rank}")
        self.job.send_signal(fault.rank, signal.SIGSTOP if fault.kind == "freeze" else signal.SIGKILL)

    def _kill(self, rank: int | None) -> None:
        if rank is not None:
            self.job.kill(rank)

    # --- plans ----------------------------------------------------------------------------------------------------

    def _deliver(self, plan: ParallelPlan, mode: str) -> None:
        check_program(program(plan), plan)
        self._note(f"{mode}: {describe_plan(plan)}")
        self.job.install(plan, mode)

    def _recovery(self, plan: ParallelPlan, dead: Collection[int], alive: Collection[int]) -> ParallelPlan:
        """Half of the time what the planner says, else anything. A plan must outlive what the script still holds."""
        if self._rng.random() < 0.5 and set(alive) <= set(plan.world):
            try:
                found = self._planned_recovery(plan, alive)
            except Infeasible:
                found = None
            if found is not None and self._outlives_the_script(found):
                return found
        return self._draw(sorted(alive), plan.epoch + 1)

    def _planned_recovery(self, plan: ParallelPlan, alive: Collection[int]) -> ParallelPlan:
        batch = self.job.spec.batch
        workload = Workload.typical(batch.micro_batches, batch.tokens_per_micro_batch)
        cluster = Cluster.of(self.script.num_ranks)
        return plan_after_loss(plan, self.model, cluster, set(alive), workload, clock=time.monotonic).plan

    def _draw(self, ranks: Collection[int], epoch: int) -> ParallelPlan:
        batch = self.job.spec.batch
        return random_plan(
            self._rng, self.model, sorted(ranks), batch.micro_batches, epoch=epoch, accept=self._outlives_the_script
        )

    def _outlives_the_script(self, plan: ParallelPlan) -> bool:
        """Whether the next losses leave a holder of every slice, or take the last one of some, as the script says."""
        held = layout(plan, self.model)

        def takes_state(loss: Loss) -> bool:
            return bool(transfers(held, held, alive=set(plan.active) - set(loss.victims)).missing)

        first, second = [*self._pending[:2], None, None][:2]
        if first is None or takes_state(first) != first.takes_state:
            return first is None
        # After the first there is another plan, made for the second; but the second may be early, or the first late.
        return first.takes_state or second is None or second.takes_state or not takes_state(second)

    def _note(self, text: str) -> None:
        self.log.append(f"{self.committed:3d} {text}")
