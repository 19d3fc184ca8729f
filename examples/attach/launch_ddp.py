"""Plain data-parallel training that goes on when a rank dies: the model and the loop are the user's own.

    resihp launch --nproc-per-node 4 examples/attach/launch_ddp.py --kill-rank 2 --at 12

Compared with an ordinary DDP script: `Job` in place of `DistributedDataParallel`, the loop over `job.steps`, and a
batch that is a function of the iteration. `--kill-rank` kills one rank in iteration `--at`: in its forward pass, in the
middle of its backward pass, or just before the optimizer's step. `--output` keeps what each rank ends with.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from torch import Tensor, nn

from resihp_attach.ddp import Job

ROWS, WIDTH = 24, 32


class Fatal(torch.autograd.Function):
    """Identity; its backward pass ends the process."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        os.kill(os.getpid(), signal.SIGKILL)
        return gradient


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, 4 * WIDTH)
        self.head = nn.Linear(4 * WIDTH, WIDTH)
        self.is_fatal = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if self.is_fatal:
            hidden = Fatal.apply(hidden)  # type: ignore[no-untyped-call]
        found: Tensor = self.head(torch.tanh(self.second(hidden)))
        return found


def batch(iteration: int) -> tuple[Tensor, Tensor]:
    """The global batch: the same on every rank, whoever is alive."""
    generator = torch.Generator().manual_seed(iteration)
    x = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, WIDTH, (ROWS,), generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--kill-rank", type=int, default=-1)
    parser.add_argument("--at", type=int, default=12)
    parser.add_argument("--point", choices=("forward", "backward", "step"), default="backward")
    parser.add_argument("--signal", choices=("KILL", "STOP"), default="KILL")
    parser.add_argument("--output", type=Path, help="folder for rank-N.pt")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(0)
    model = Model().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job = Job(model, optimizer, bucket_cap_mb=0.05)
    loss = torch.zeros(())
    for step in job.steps(args.iterations):
        is_victim = rank == args.kill_rank and step.iteration == args.at
        with step:
            x, y = batch(step.iteration)
            part = step.share(ROWS)
            if is_victim and args.point == "forward":
                os.kill(os.getpid(), getattr(signal, f"SIG{args.signal}"))
            model.is_fatal = is_victim and args.point == "backward"
            # A sum over the rank's rows, divided by the rows of all: then unequal parts change nothing.
            loss = nn.functional.cross_entropy(job.model(x[part]), y[part], reduction="sum") * step.world / ROWS
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if is_victim and args.point == "step":
                os.kill(os.getpid(), getattr(signal, f"SIG{args.signal}"))
            optimizer.step()
            optimizer.zero_grad()
    if args.output is not None:
        torch.save([p.detach() for p in model.parameters()], args.output / f"rank-{rank}.pt")
    print(f"rank {rank} (process {os.getpid()}) done with ranks {job.members}, loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
