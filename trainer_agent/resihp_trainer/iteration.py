"""One iteration in an epoch: program, gradient sums, vote, commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resihp_messages import FaultPoint
from resihp_plan import OpKind, slice_batch
from resihp_trainer.context import Context
from resihp_trainer.data import Batch, documents
from resihp_trainer.gradients import Gradients, GradientSync
from resihp_trainer.install import ActiveEpoch
from resihp_trainer.interpreter import Unit, Work
from resihp_trainer.join import Applied
from resihp_trainer.model import MicroBatch
from resihp_trainer.saving import Saver
from resihp_trainer.state import Kept, TrainingState
from resihp_trainer.vote import Ballot, Outcome, count

Slices = tuple[tuple[tuple[int, ...], ...], ...]
"""[replica][micro-batch] -> indices of documents."""


class IterationRefused(Exception):
    """The vote said no, with the same reason on every rank: the job cannot go on."""


@dataclass(frozen=True)
class Step:
    """A committed iteration as this rank saw it."""

    outcome: Outcome
    work: Work
    phases_s: Mapping[str, float]
    """Announced work besides training -> seconds that it took."""


def run_iteration(
    context: Context, active: ActiveEpoch, state: TrainingState, saver: Saver, pending_epoch: int, order: int = 0
) -> Step:
    """Run and commit iteration `state.committed + 1`. `pending_epoch`: the held planned epoch, or 0. `order`: key of
    the held order to probe, or 0.

    Raises `EpochAborted` and `CommunicationFailed` with `state` as the last commit left it (except for `kept`), and
    `IterationRefused`.
    """
    iteration = state.committed + 1
    batch = documents(context.corpus, context.spec.batch, context.spec.seed, iteration)
    context.waits.reset()
    work, covered = _execute(context, active, batch)
    gradients = _synchronise(context, active, iteration)
    state.kept = Kept(active.plan.epoch, gradients)
    ballot = _ballot(work, covered, batch, gradients, max(0, pending_epoch - active.plan.epoch), saver.ballot(), order)
    total = ballot.vector(len(batch.documents))
    pending = active.world.all_reduce(total)
    context.faults.strike(FaultPoint.VOTE, iteration)
    if state.voted_epoch != active.plan.epoch:
        context.faults.strike(FaultPoint.FIRST_VOTE, iteration - 1)
    pending.wait()
    work.resolve()  # the device is behind the vote
    outcome = count(
        total,
        iteration,
        world_size=len(active.plan.world),
        expected_tokens=batch.num_tokens,
        epoch=active.plan.epoch,
    )
    if outcome.refusal:
        raise IterationRefused(f"iteration {iteration}: {outcome.refusal}")
    samples = outcome.samples_once + (state.applied.samples if state.applied else 0)
    applied = Applied(iteration, active.plan.epoch, outcome.tokens, samples, outcome.norm, outcome.loss)
    state.commit(active.plan.epoch, applied, lambda: context.faults.strike(FaultPoint.OPTIMIZER, iteration))
    context.waits.update()
    return Step(outcome, work, saver.after_commit(active.held, applied, outcome))


def _execute(context: Context, active: ActiveEpoch, batch: Batch) -> tuple[Work, list[int]]:
    """Run this rank's program; also returns the documents whose loss this rank answers for."""
    interpreter, position = active.interpreter, active.plan.position(context.rank)
    if interpreter is None or position is None:
        context.faults.strike(FaultPoint.COMPUTE, batch.iteration)  # a standby rank dies here too
        return Work(), []
    sliced = sliced_of(context, active, batch)
    units = units_of(context, active, batch, sliced)
    # In the second forward if there is one: then some of the iteration's work is done and some is not.
    countdown = min(2, sum(m.num_tokens > 0 for m in units.values()))

    def before_forward() -> None:
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            context.faults.strike(FaultPoint.COMPUTE, batch.iteration)

    if not countdown:
        context.faults.strike(FaultPoint.COMPUTE, batch.iteration)
    work = interpreter.run(active.ops, units, before_forward)
    answers = position[2] == 0
    return work, [i for a, m in work.finished for i in sliced[a][m]] if answers else []


def sliced_of(context: Context, active: ActiveEpoch, batch: Batch) -> Slices:
    """Which documents are in which micro-batch under the epoch's plan."""
    tokens = context.spec.batch.tokens_per_micro_batch
    return slice_batch(batch.documents, active.plan, context.model, tokens_per_micro_batch=tokens).micro_batches


def units_of(context: Context, active: ActiveEpoch, batch: Batch, sliced: Slices) -> dict[Unit, MicroBatch]:
    """The units that this rank executes."""
    return {
        (op.replica, op.micro_batch): batch.micro_batch(sliced[op.replica][op.micro_batch]).to(context.accelerator)
        for op in active.ops
        if op.kind is OpKind.FORWARD
    }


def _synchronise(context: Context, active: ActiveEpoch, iteration: int) -> Gradients:
    sync = GradientSync(active.held, active.buckets, active.groups)
    if active.interpreter is not None:
        sync.launch(active.interpreter.gradients())
        active.interpreter.clear()
    context.faults.strike(FaultPoint.GRADIENT, iteration)
    return sync.finish(iteration, lambda: context.communicator.settle(active.plan.epoch))


def _ballot(
    work: Work,
    covered: list[int],
    batch: Batch,
    gradients: Gradients,
    epochs_ahead: int,
    saved: tuple[int, int, float],
    order: int,
) -> Ballot:
    """Loss and tokens count on the ranks that answer for documents, so each is summed once."""
    return Ballot(
        ok=True,
        norm_sq=gradients.norm_sq,
        tokens=sum(batch.documents[i].length for i in covered),
        loss=work.loss if covered else 0.0,
        epochs_ahead=epochs_ahead,
        covered=covered,
        copies=saved[0],
        files=saved[1],
        seconds=saved[2],
        order=order,
    )
