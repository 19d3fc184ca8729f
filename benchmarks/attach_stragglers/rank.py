"""One rank of a 4-rank DDP job with the package's sections in its loop, for torchrun under `resihp run`.

    torchrun ... -m benchmarks.attach_stragglers.rank FOLDER FACTOR SPREAD HEALTHY AFTER EVERY

Virtual clock: the forward pass lasts for a third of what the rank's documents take, the backward pass for the rest,
asleep; rank 2 takes `FACTOR` times as long after `HEALTHY` iterations. Both watchers see the same iterations: the hooks
of `resihp run`, and sections around forward and backward pass, with a report every `EVERY` iterations. Rank 0 prints
what the reports named and what they took.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.attach_stragglers.sections import detector

CULPRIT, ROWS, LONGEST, TYPICAL = 2, 8, 512, 150
TOKEN_S, PAIR_S = 2e-5, 2.5e-8


class Net(nn.Module):
    """Takes `seconds` for a pass forward, and twice that for one back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.seconds = 0.0

    def forward(self, features: Tensor, attention_mask: Tensor) -> Tensor:
        begun_s = time.monotonic()
        hidden: Tensor = self.layer(features)
        hidden.register_hook(lambda gradient: time.sleep(2 * self.seconds))  # type: ignore[no-untyped-call]
        _sleep_until(begun_s + self.seconds)
        return hidden


def _sleep_until(moment_s: float) -> None:
    time.sleep(max(0.0, moment_s - time.monotonic()))


def documents(draw: random.Random, spread: float) -> list[int]:
    """Lengths; `spread` of their logarithms."""
    return [min(LONGEST, max(8, round(TYPICAL * draw.lognormvariate(0.0, spread)))) for _ in range(ROWS)]


def main() -> None:
    folder, factor, spread = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    healthy, after, every = map(int, sys.argv[4:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, sections = dist.get_rank(), detector(folder)
    net = Net()
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    draw, reports, wall_s, processor_s = random.Random(rank), list[Any](), list[float](), list[float]()
    for iteration in range(1, healthy + after + 1):
        lengths = documents(draw, spread)
        mask = (torch.arange(LONGEST)[None] < torch.tensor(lengths)[:, None]).long()
        net.seconds = sum(TOKEN_S * n + PAIR_S * n * n for n in lengths) / 3
        net.seconds *= factor if rank == CULPRIT and iteration > healthy else 1.0
        with sections.detection_section("forward", profile_cuda=False):
            loss = model(torch.ones(ROWS, 16), attention_mask=mask).square().mean()
        with sections.detection_section("backward", profile_cuda=False):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if iteration % every == 0:
            begun = time.perf_counter(), time.thread_time()
            report = sections.generate_report()
            wall_s.append(time.perf_counter() - begun[0])
            processor_s.append(time.thread_time() - begun[1])
            if report is not None:
                reports.append((iteration, _named(report.identify_stragglers())))
    if rank == 0:
        print(json.dumps({"reports": reports, "wall_s": wall_s, "processor_s": processor_s}))
    dist.barrier()
    dist.destroy_process_group()


def _named(stragglers: Any) -> dict[str, list[int]]:
    return {
        f"{section}, {kind}": sorted(straggler.rank for straggler in found)
        for kind in ("relative", "individual")
        for section, found in stragglers[f"straggler_sections_{kind}"].items()
    }


if __name__ == "__main__":
    main()
