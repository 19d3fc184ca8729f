"""Data-parallel training that survives the death of a rank, in the same processes, under `resihp launch`.

    from resihp_attach.ddp import Job

    job = Job(model, optimizer)                  # job.model is PyTorch's DDP around the model
    for step in job.steps(1000):                 # the interrupted step comes again, with fewer ranks
        with step:
            part = step.share(rows)              # which rows of the global batch are this rank's
            loss = loss_sum(job.model(x[part]), y[part]) * step.world / rows
            loss.backward()
            optimizer.step()                     # here all ranks agree, or the step is given up
            optimizer.zero_grad()

The model stays the user's own. When a rank dies, the others leave the step, build a group of their own, and repeat it:
gradients are then averaged over the survivors. docs/attach.md lists the limits.

Unlike the hooks, which need nothing, this package needs ours: groups that can be aborted (`resihp_trainer.comm`).

Errors: `LaunchError` (ValueError for wrong use aside) > `LauncherGone`, `StateDiverged`. `RankLost` is raised inside a
step only, and ends there.
"""

from __future__ import annotations

from resihp_attach.ddp.errors import LauncherGone, LaunchError, RankLost, StateDiverged
from resihp_attach.ddp.job import Job
from resihp_attach.ddp.step import Step

__all__ = ["Job", "LaunchError", "LauncherGone", "RankLost", "StateDiverged", "Step"]
