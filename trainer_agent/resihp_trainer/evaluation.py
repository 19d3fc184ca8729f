"""The loss on held-out text: the forward half of the epoch's program on batches that are never trained on.

It comes after a commit, before the next iteration begins, and whether it does is a function of the committed iteration:
all members of an epoch do it together, also those that have just joined it. It reads the shards and changes nothing, so
a fault in it costs nothing but its repetition under the next plan.
"""

from __future__ import annotations

import math

import torch

from resihp_messages import EvaluationConfig, link
from resihp_trainer.context import Context
from resihp_trainer.data import documents
from resihp_trainer.install import ActiveEpoch
from resihp_trainer.iteration import sliced_of, units_of

PHASE = "evaluation"


def is_due(config: EvaluationConfig, committed: int) -> bool:
    """Whether the state after this iteration is evaluated.

    >>> [k for k in range(8) if is_due(EvaluationConfig(every=3, path="text"), k)]
    [3, 6]
    """
    return config.every > 0 and committed > 0 and committed % config.every == 0


def evaluate(context: Context, active: ActiveEpoch, committed: int) -> dict[str, float]:
    """Evaluate if it is due. Returns the announced work: kind -> seconds of this thread, to go into the next report.

    One rank says what was found. Raises `EpochAborted` and `CommunicationFailed`.
    """
    if context.held_out is None or not is_due(context.spec.evaluation, committed):
        return {}
    start = context.clock()
    loss, tokens = 0.0, 0
    for number in range(1, context.spec.evaluation.batches + 1):
        found = _batch(context, active, number)
        loss, tokens = loss + found[0], tokens + found[1]
    total = torch.tensor([loss, tokens], dtype=torch.float64)
    active.world.all_reduce(total).wait()
    seconds = context.clock() - start
    if context.rank == min(active.plan.active):
        mean = float(total[0] / total[1])
        context.send(
            link.Evaluated(
                epoch=active.plan.epoch,
                iteration=committed,
                loss=mean if math.isfinite(mean) else None,
                tokens=int(total[1]),
                seconds=seconds,
            )
        )
    return {PHASE: seconds}


def _batch(context: Context, active: ActiveEpoch, number: int) -> tuple[float, int]:
    """This rank's part of the loss of a batch, and the tokens for which it answers."""
    interpreter, position = active.interpreter, active.plan.position(context.rank)
    if interpreter is None or position is None:
        return 0.0, 0
    assert context.held_out is not None
    batch = documents(context.held_out, context.spec.batch, context.spec.seed, number)
    sliced = sliced_of(context, active, batch)
    work = interpreter.evaluate(active.ops, units_of(context, active, batch, sliced))
    context.communicator.settle(active.plan.epoch)
    if position[2]:  # of the members of a TP group, which all know the loss, the first answers
        return 0.0, 0
    return work.loss, sum(batch.documents[i].length for a, m in work.finished for i in sliced[a][m])
