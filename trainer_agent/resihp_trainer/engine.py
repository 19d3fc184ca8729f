"""The epoch loop of a worker: wait for a plan, install it, train in it, leave it (docs/protocol.md).

`EpochAborted`, `CommunicationFailed` and `JoinRefused` lead back to the wait for a plan. `TrainingFailed` is the end.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from resihp_messages import FaultPoint, link
from resihp_messages.link import InstallPlan
from resihp_messages.page import PageState
from resihp_plan import ParallelPlan
from resihp_trainer.catalogue import StateGone
from resihp_trainer.comm.port import CommunicationFailed, EpochAborted, EpochGroups
from resihp_trainer.context import Context
from resihp_trainer.desk import AllCommitted, Desk, PlanTimeout, Stopped
from resihp_trainer.evaluation import evaluate
from resihp_trainer.install import ActiveEpoch, install
from resihp_trainer.iteration import IterationRefused, run_iteration
from resihp_trainer.join import JoinRefused
from resihp_trainer.memory import ResidentMemory, peak_rss_bytes
from resihp_trainer.probe import Probe
from resihp_trainer.result import write_shards
from resihp_trainer.saving import Saver
from resihp_trainer.state import TrainingState
from resihp_trainer.telemetry import telemetry
from resihp_trainer.validation import order_key, validate

_TEXT = 1000
"""Longest text of a frame."""


class TrainingFailed(Exception):
    """This worker cannot go on; the text is for the user."""


class Engine:
    """The life of one worker after its hello; everything in the training thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._state = TrainingState(context.spec.optimizer)
        self._saver = Saver(context.spec, context.rank, context.dtype, context.page.tick, self._checkpoint_failed)
        self._desk = Desk(context, self._state)
        self._groups: list[EpochGroups] = []
        """Built and not retired, oldest first; two during a planned change."""
        self._shards_file = ""
        self._memory = ResidentMemory()
        self._probe = Probe(
            context.spec.clock,
            context.device,
            accelerator=context.accelerator,
            streams=context.communicator.streams,
        )

    def run(self) -> None:
        """Returns when the job is finished or stopped, with the last frame queued. Raises `TrainingFailed`."""
        try:
            while not self._live_one_epoch():
                pass
            self._say_finished()
        except Stopped:
            pass
        except AllCommitted:
            self._say_finished()
        except (IterationRefused, PlanTimeout, StateGone) as error:
            raise TrainingFailed(str(error)) from error
        finally:
            self._retire(keep=0)
            self._place(PageState.STOPPED)

    def _live_one_epoch(self) -> bool:
        """From the wait for a plan to the end of the job (True) or to the loss of the epoch (False)."""
        self._place(PageState.WAITING)
        command, plan = self._desk.await_plan()
        context = self._context
        try:
            self._train(command, plan)
        except EpochAborted:
            self._leave()
            self._desk.say_aborted()
        except CommunicationFailed as error:
            epoch = self._leave()
            context.send(
                link.CommunicationFailed(
                    epoch=epoch, group=error.group, error=error.error[:_TEXT], iteration=self._state.committed + 1
                )
            )
        except JoinRefused as error:
            self._leave()
            self._desk.say_refused(str(error))
        else:
            return True
        return False

    def _train(self, command: InstallPlan, plan: ParallelPlan) -> None:
        """Install the plan and train to the end of the job, through planned changes."""
        last = self._context.spec.iterations
        active = self._install(command, plan)
        while self._state.committed < last:
            next_epoch = self._iterate(active)
            if next_epoch and self._state.committed < last:
                self._context.faults.strike(FaultPoint.SWITCH, self._state.committed)
                active = self._install(*self._desk.take_planned(next_epoch))
        self._finish(active)

    def _install(self, command: InstallPlan, plan: ParallelPlan) -> ActiveEpoch:
        self._saver.switch()
        self._desk.enter(command, plan)
        active = install(
            self._context,
            self._state,
            self._saver,
            command,
            plan,
            self._groups.append,
            on_joined=lambda: self._retire(keep=1),
        )
        self._context.send(
            link.PlanInstalled(
                epoch=plan.epoch,
                reconfiguration_id=command.reconfiguration_id,
                digest=plan.digest,
                committed=self._state.committed,
                abort_s=self._desk.abort_s if command.mode == "recovery" else 0.0,
                rebuild_s=active.rebuild_s,
                move_s=active.move_s,
                bytes_received=active.bytes_received,
                digests_equal=True,
                lost_iterations=self._state.setback.lost,
                state_source=self._state.setback.source,
            )
        )
        return active

    def _iterate(self, active: ActiveEpoch) -> int:
        """One iteration; returns the epoch to switch to, or 0."""
        context, state = self._context, self._state
        self._desk.read_orders(active.plan.epoch)
        self._place(PageState.TRAINING if active.interpreter else PageState.STANDBY, iteration=state.committed + 1)
        announced = evaluate(context, active, state.committed)
        start = context.clock()
        first = state.voted_epoch != active.plan.epoch
        order = self._desk.validation
        step = run_iteration(context, active, state, self._saver, self._desk.planned_epoch, order_key(order))
        end = context.clock()
        told = telemetry(context.spec, active, step, first_of_epoch=first, disputed=state.take_disputed())
        if told["fingerprints"]:
            self._saver.check(step.outcome.iteration, told["fingerprints"], active.buckets)
        probe_s = self._probe.seconds(self._pause) if first or active.interpreter is None else 0.0
        context.send(
            link.unchecked(
                link.IterationCommitted,
                epoch=active.plan.epoch,
                iteration=step.outcome.iteration,
                first_of_epoch=first,
                step_s=end - start,
                tp_wait_s=context.waits.tp_s,
                pp_wait_s=context.waits.pp_s,
                dp_wait_s=context.waits.dp_s,
                rss_bytes=self._memory.recent_bytes(now=first),
                loss=step.outcome.mean_loss,
                global_tokens=step.outcome.tokens,
                samples_expected=step.outcome.samples_expected,
                samples_once=step.outcome.samples_once,
                redo_s=end - active.installed_at if first else 0.0,
                probe_s=probe_s,
                phases_s={**step.phases_s, **announced},
                **told,
            )
        )
        if step.outcome.probes and order is not None:
            self._desk.validation = None
            found = validate(order, context.rank, active.groups, self._probe, self._pause, step.outcome.iteration)
            if found is not None:
                context.send(found)
        return step.outcome.next_epoch

    def _finish(self, active: ActiveEpoch) -> None:
        """Write the result, then meet: whoever passes the barrier knows that everybody is done."""
        self._place(PageState.FINISHING)
        evaluate(self._context, active, self._state.committed)
        output = self._context.spec.output_path
        if output is not None:
            try:
                self._shards_file = str(write_shards(output, active.held, self._state.committed) or "")
            except OSError as error:
                raise TrainingFailed(f"output_dir {output}: {error.strerror or error}") from error
        if self._state.applied is not None:
            self._saver.save_last(active.held, self._state.applied, active.world)
        active.world.all_reduce(torch.ones(1, dtype=torch.float64)).wait()

    def _say_finished(self) -> None:
        applied = self._state.applied
        if applied is None and not self._state.holdings:  # a newcomer that the job did not need any more
            self._context.send(
                link.Finished(
                    committed=0, samples_expected=0, samples_once=0, final_loss=None, peak_rss_bytes=peak_rss_bytes()
                )
            )
            return
        if self._state.committed != self._context.spec.iterations or applied is None:
            raise TrainingFailed(
                f"told to finish after {self._state.committed} of {self._context.spec.iterations} iterations"
            )
        self._context.send(
            link.Finished(
                committed=self._state.committed,
                samples_expected=applied.samples,
                samples_once=applied.samples,
                final_loss=applied.loss / applied.tokens,
                peak_rss_bytes=peak_rss_bytes(),
                shards_file=self._shards_file,
            )
        )

    def _leave(self) -> int:
        """Give up the epoch that was entered last, and everything older; returns it.

        Its closed sockets also release those members that have not noticed anything.
        """
        epoch = self._desk.leave()
        self._context.communicator.abort(epoch)
        self._saver.leave()
        self._retire(keep=0)
        return epoch

    def _retire(self, keep: int) -> None:
        while len(self._groups) > keep:
            self._context.communicator.retire(self._groups.pop(0))

    def _checkpoint_failed(self, iteration: int, path: Path, error: str) -> None:
        self._context.send(
            link.CheckpointFailed(iteration=iteration, path=str(path)[:_TEXT], error=error[:_TEXT] or "unknown")
        )

    def _pause(self, seconds: float) -> None:
        self._context.page.tick()
        time.sleep(seconds)

    def _place(self, state: PageState, iteration: int | None = None) -> None:
        self._context.page.place(
            epoch=self._desk.epoch, iteration=self._state.committed if iteration is None else iteration, state=state
        )
