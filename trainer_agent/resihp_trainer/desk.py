"""The worker's dealings with its agent: which plans it accepts and holds, what it says about epochs that it left."""

from __future__ import annotations

from dataclasses import dataclass

from resihp_messages import FaultPoint, link
from resihp_messages.link import CorruptState, FinishNow, InstallPlan, SetSpeed, StopNow, Validate
from resihp_messages.placement import starts_of
from resihp_plan import ParallelPlan
from resihp_trainer.accept import PlanUnusable, accept, base_plans
from resihp_trainer.comm.port import EpochAborted
from resihp_trainer.context import Context
from resihp_trainer.corruption import flip_bit
from resihp_trainer.state import TrainingState
from resihp_trainer.watcher import Order

_SLICE_S = 0.05


class Stopped(Exception):
    """The agent wants this worker to exit without a result."""


class AllCommitted(Exception):
    """Some rank has passed the last barrier, so every rank has committed the last iteration and written its shards."""


class PlanTimeout(Exception):
    """No plan came in time; the text is for the user."""


@dataclass(frozen=True)
class _Entered:
    """The plan whose epoch was entered last."""

    command: InstallPlan
    plan: ParallelPlan


class Desk:
    """Reads orders in the training thread and answers them. Aborts do not pass here: the watcher executes them."""

    def __init__(self, context: Context, state: TrainingState) -> None:
        self._context = context
        self._state = state
        self._entered: _Entered | None = None
        self._planned: _Entered | None = None
        self._replacement: InstallPlan | None = None
        """Arrived while this rank was in the epoch that it replaces."""
        self._left_at: float | None = None
        self._is_announced = True
        self.validation: Validate | None = None
        """Probes that wait for the vote."""
        self.abort_s = 0.0
        """From the agent's notice to leaving the operation, of the newest abort."""

    @property
    def epoch(self) -> int:
        """The epoch entered last; 0 before the first."""
        return self._entered.plan.epoch if self._entered else 0

    @property
    def planned_epoch(self) -> int:
        """The epoch of the plan that waits for the vote, or 0."""
        return self._planned.plan.epoch if self._planned else 0

    # --- plans ----------------------------------------------------------------------------------------------------

    def await_plan(self) -> tuple[InstallPlan, ParallelPlan]:
        """Wait for a plan to install now. Raises `Stopped`, `AllCommitted`, `PlanTimeout`."""
        clock, start = self._context.clock, self._context.clock()
        while True:
            order: Order | None = self._replacement
            self._replacement = None
            order = order or self._context.watcher.next_order(_SLICE_S)
            self._context.page.tick()
            self.say_aborted()
            installable = self._take(order)
            if installable is not None:
                return installable.command, installable.plan
            waited = clock() - start
            if self._left_at is not None and waited > self._context.spec.timeouts.plan_s:
                raise PlanTimeout(f"no plan arrived within {waited:.0f} s after epoch {self.epoch} was lost")

    def read_orders(self, epoch: int) -> None:
        """Answer what has arrived, without waiting, while this rank works in `epoch`.

        Raises `Stopped`, and `EpochAborted` if a plan replaces the epoch.
        """
        while (order := self._context.watcher.next_order(0.0)) is not None:
            if isinstance(order, InstallPlan) and order.mode != "planned" and order.epoch > epoch:
                self._replacement = order
                self._context.communicator.abort(epoch)
                raise EpochAborted(epoch)
            self._take(order)

    def take_planned(self, epoch: int) -> tuple[InstallPlan, ParallelPlan]:
        """The held plan, which the vote has chosen."""
        planned, self._planned = self._planned, None
        assert planned is not None  # a unanimous vote contains this rank's ballot
        assert planned.plan.epoch == epoch
        return planned.command, planned.plan

    def enter(self, command: InstallPlan, plan: ParallelPlan) -> None:
        """The epoch of the plan is about to be built; deaths of its members abort it from now on."""
        self._entered = _Entered(command, plan)
        if self._planned is not None and self._planned.plan.epoch <= plan.epoch:
            self._planned = None
        self._left_at = None
        self._context.watcher.enter(plan.epoch, plan.world, starts_of(command.placement))

    def _take(self, order: Order | None) -> _Entered | None:
        """Answer an order; a plan is returned if it is to be installed now."""
        match order:
            case StopNow():
                raise Stopped
            case FinishNow():
                raise AllCommitted
            case SetSpeed(peer=int(peer)):
                self._context.links.set_speed(peer, order.factor, order.for_s)
            case SetSpeed():
                self._context.device.set_speed(order.factor, order.for_s)
            case CorruptState() if self._state.holdings:
                flip_bit(self._state.holdings[max(self._state.holdings)])
            case Validate():
                self.validation = order
            case InstallPlan():
                return self._take_plan(order)
        return None

    def _take_plan(self, command: InstallPlan) -> _Entered | None:
        answer = {"epoch": command.epoch, "reconfiguration_id": command.reconfiguration_id}
        if self._is_repeated(command):
            self._context.send(link.PlanHeld(**answer, digest=command.digest))
            return None
        try:
            held = self._accept(command)
        except PlanUnusable as error:
            self._context.send(link.PlanRefused(**answer, reason=str(error)))
            return None
        is_planned = command.mode == "planned" and self._is_in_epoch
        if is_planned:
            self._context.faults.strike(FaultPoint.PREPARE, self._state.committed)
        self._context.send(link.PlanHeld(**answer, digest=command.digest))
        if is_planned:
            self._planned = held
            return None
        return held

    def _accept(self, command: InstallPlan) -> _Entered:
        spec, context = self._context.spec, self._context
        plan = accept(
            command,
            rank=context.rank,
            model=context.model,
            num_micro_batches=spec.batch.micro_batches,
            newest_epoch=max(self.epoch if self._entered else -1, self.planned_epoch or -1),
            dead=context.watcher.dead,
        )
        if command.mode == "planned" and not self._is_in_epoch and self._state.holdings:
            raise PlanUnusable("mode: this rank lost its epoch and waits for a recovery plan")
        self._state.learn(*base_plans(command), plan)
        self._state.is_original |= command.mode == "initial"
        return _Entered(command, plan)

    def _is_repeated(self, command: InstallPlan) -> bool:
        """The same command again, as an agent that restarted may send it."""
        return any(
            held is not None and (held.command.epoch, held.command.digest) == (command.epoch, command.digest)
            for held in (self._entered, self._planned)
        )

    @property
    def _is_in_epoch(self) -> bool:
        return self._entered is not None and self._left_at is None

    # --- epochs that were left ------------------------------------------------------------------------------------

    def leave(self) -> int:
        """The rank has left its operation in the epoch entered last, which is returned; a held plan is void with it."""
        self._left_at = self._context.clock()
        self._is_announced = False
        self._planned = self.validation = None
        return self.epoch

    def say_aborted(self) -> None:
        """Tell the agent once about the epoch that was left, as soon as its own notice of the fault is known."""
        if self._is_announced or self._left_at is None:
            return
        noticed_s = self._context.watcher.noticed_s(self.epoch)
        if noticed_s is None:
            return
        self.abort_s = max(0.0, self._left_at - noticed_s)
        self._is_announced = True
        self._context.send(link.EpochAborted(epoch=self.epoch, committed=self._state.committed, abort_s=self.abort_s))

    def say_refused(self, reason: str) -> None:
        """Tell the agent that the members of the epoch cannot go on together."""
        assert self._entered is not None
        command = self._entered.command
        self._context.send(
            link.PlanRefused(epoch=command.epoch, reconfiguration_id=command.reconfiguration_id, reason=reason[:1000])
        )
