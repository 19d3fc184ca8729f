"""One rank under `resihp launch`; prints `commit RANK STEP SECONDS WORLD` for every step (CLOCK_MONOTONIC)."""

from __future__ import annotations

import torch

from benchmarks.attach_survival import model as plain
from benchmarks.beside_torchft.commits import say
from resihp_attach.ddp import Job


def main() -> None:
    """Train until stopped."""
    torch.set_num_threads(1)
    module = plain.model()
    optimizer = plain.optimizer(module)
    job = Job(module, optimizer)
    for step in job.steps(1_000_000):
        with step:
            x, y = plain.batch(step.iteration, step.index, step.world)
            plain.loss(job.model(x), y, step.world).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            say(job.rank, step.iteration, step.world)


if __name__ == "__main__":
    main()
