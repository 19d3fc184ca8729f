"""A DDP job with one of 4 ranks at half speed: iteration time with the even split of rows, balanced, at the optimum.

    python -m benchmarks.attach_balance [--steps 60]

Four ranks with a gloo group, as threads of one process. Virtual clock: the compute of a micro-batch is padded, asleep,
to `rows x 20 ms / speed`; what DDP, the sampler and the gathering of speeds cost is real.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from benchmarks.report import Spread, machine, milliseconds, table, write
from resihp_attach.balance import BalancedBatchSampler, Speeds, share_rows

ROWS, UNIT_S, WIDTH = 16, 0.02, 64


@dataclass(frozen=True)
class Case:
    """Speeds of the ranks, and how often they tell each other (0: never, the even split)."""

    name: str
    speeds: tuple[float, ...]
    every: int


def optimum_s(speeds: Sequence[float]) -> float:
    """Of the compute of one iteration, whole rows."""
    return max(rows / speed for rows, speed in zip(share_rows(ROWS, speeds), speeds, strict=True)) * UNIT_S


def train(rank: int, case: Case, store: Any, net: nn.Module, steps: int) -> list[float]:
    """One rank; when each of its iterations ended (monotonic seconds)."""
    world = len(case.speeds)
    group = dist.ProcessGroup(store, rank, world)
    gloo = dist.ProcessGroupGloo(store, rank, world, timedelta(seconds=60))
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)

    def gather(number: float) -> list[float]:
        everybody = [torch.zeros(1, dtype=torch.float64) for _ in range(world)]
        group.allgather([everybody], [torch.tensor([number], dtype=torch.float64)]).wait()
        return [float(t) for t in everybody]

    ddp = DistributedDataParallel(net, process_group=group)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    speeds = Speeds(world, gather, every=case.every or steps + 1)
    data = torch.randn(ROWS * steps, WIDTH, generator=torch.Generator().manual_seed(0))
    ends = []
    for part in BalancedBatchSampler(len(data), rows=ROWS, rank=rank, speeds=speeds):
        begun_s = time.monotonic()
        outputs = ddp(data[part])
        compute_s = len(part) * UNIT_S / case.speeds[rank]
        time.sleep(max(0.0, begun_s + compute_s - time.monotonic()))
        (outputs.square().sum() * world / ROWS).backward()
        optimizer.step()
        optimizer.zero_grad()
        speeds.observe(compute_s, rows=len(part))
        ends.append(time.monotonic())
    return ends


def measure(case: Case, steps: int) -> Spread:
    """Seconds of an iteration, once the speeds are known."""
    nets = [nn.Linear(WIDTH, WIDTH) for _ in case.speeds]
    for net in nets[1:]:
        net.load_state_dict(nets[0].state_dict())
    store = HashStore()
    with ThreadPoolExecutor(len(nets)) as pool:
        ends = list(pool.map(lambda rank: train(rank, case, store, nets[rank], steps), range(len(nets))))
    settled = [max(at) for at in zip(*ends, strict=True)][max(case.every, 5) + 1 :]
    return Spread.of([b - a for a, b in itertools.pairwise(settled)])


def main() -> None:
    """Write benchmarks/results/attach_balance.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    slow, healthy = (1.0, 1.0, 0.5, 1.0), (1.0,) * 4
    facts = {**machine(), "job": f"DDP, 4 ranks, {ROWS} rows per micro-batch, {1e3 * UNIT_S:.0f} ms per row, gloo"}
    torch.set_num_threads(1)
    rows = []
    for case in (
        Case("even split, all healthy", healthy, 0),
        Case("balanced, all healthy", healthy, 10),
        Case("even split, rank 2 at half speed", slow, 0),
        Case("balanced, rank 2 at half speed", slow, 10),
    ):
        found, best_s = measure(case, steps), optimum_s(case.speeds)
        cells = [milliseconds(s) for s in (found.median, found.low, found.high, best_s)]
        rows.append([case.name, *cells, f"{found.median / best_s:.3f}"])
    header = ("", "iteration, median ms", "1st quartile", "3rd quartile", "optimum split, ms", "median / optimum")
    body = (
        "**Virtual clock**: the compute of each rank is padded to its rows x 20 ms / its speed; all else is real. "
        "Optimum: the best split into whole rows, compute only. Speeds are gathered every 10 iterations; iterations "
        f"before the first gathering are left out.\n\n{table(header, rows)}"
    )
    command = f"python -m benchmarks.attach_balance --steps {steps}"
    print(write("attach_balance", "Re-balancing rows between data-parallel ranks", command, facts, body).read_text())


if __name__ == "__main__":
    main()
