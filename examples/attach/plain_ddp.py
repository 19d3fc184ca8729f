"""A plain DDP script that knows nothing of ResiHP.

    resihp run -- torchrun --nproc-per-node 4 examples/attach/plain_ddp.py

`--slow-rank`, `--slow-ms`, `--slow-from` add work to the backward pass of one rank; `--freeze-rank`, `--kill-rank` and
`--hang-rank` stop one in iteration `--at`: what `resihp events` names is then known beforehand.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Slow(torch.autograd.Function):
    """Identity whose backward pass takes `seconds` longer."""

    @staticmethod
    def forward(ctx, x, seconds):  # type: ignore[no-untyped-def]
        ctx.seconds = seconds
        return x

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        time.sleep(ctx.seconds)
        return gradient, None


class Model(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 256)
        self.slow_s = 0.0

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        if self.slow_s:
            hidden = Slow.apply(hidden, self.slow_s)  # type: ignore[no-untyped-call]
        logits: torch.Tensor = self.head(hidden)
        return logits


def batch(generator: random.Random, rows: int = 4, longest: int = 48) -> dict[str, torch.Tensor]:
    lengths = [generator.randint(longest // 3, longest) for _ in range(rows)]
    mask = torch.zeros(rows, longest, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    return {"input_ids": torch.randint(0, 256, (rows, longest)) * mask, "attention_mask": mask}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-ms", type=float, default=40.0)
    parser.add_argument("--slow-from", type=int, default=40)
    parser.add_argument("--kill-rank", type=int, default=-1)
    parser.add_argument("--freeze-rank", type=int, default=-1)
    parser.add_argument("--hang-rank", type=int, default=-1)
    parser.add_argument("--hang-s", type=float, default=10.0)
    parser.add_argument("--at", type=int, default=20)
    parser.add_argument("--timeout-s", type=float, default=60.0, help="of the collectives")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout_s))
    rank = dist.get_rank()
    model = Model()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    data = random.Random(rank)
    for iteration in range(1, args.iterations + 1):
        if iteration == args.at:
            if rank == args.kill_rank:
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == args.freeze_rank:
                os.kill(os.getpid(), signal.SIGSTOP)
            if rank == args.hang_rank:
                time.sleep(args.hang_s)  # e.g. a data loader that waits for a lost file system
        model.slow_s = args.slow_ms / 1000 if rank == args.slow_rank and iteration >= args.slow_from else 0.0
        inputs = batch(data)
        logits = ddp(**inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), inputs["input_ids"].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} done, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
