"""Unequal rows under PyTorch's own DDP: gradients and parameters equal to the even split, in float64."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from resihp_attach.balance import BalancedBatchSampler, Speeds

WORLD, ROWS, STEPS = 4, 16, 6
DATA = torch.randn(ROWS * STEPS, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LABELS = torch.randint(0, 8, (ROWS * STEPS,), generator=torch.Generator().manual_seed(2))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)).double()


def train(rank: int, store: Any, speeds: tuple[float, ...]) -> tuple[list[torch.Tensor], list[int]]:
    """One rank in its own thread, with its own gloo group; returns parameters and rows per micro-batch."""
    group = dist.ProcessGroup(store, rank, WORLD)
    gloo = dist.ProcessGroupGloo(store, rank, WORLD, timedelta(seconds=30))
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    net = models[rank]
    ddp = DistributedDataParallel(net, process_group=group)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    known = Speeds(WORLD, lambda s: [s])
    known.relative = speeds
    rows = []
    for part in BalancedBatchSampler(len(DATA), rows=ROWS, rank=rank, speeds=known, seed=5):
        rows.append(len(part))
        loss = nn.functional.cross_entropy(ddp(DATA[part]), LABELS[part], reduction="sum")
        (loss * WORLD / ROWS).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in net.parameters()], rows


models: list[nn.Module] = []


def world(speeds: tuple[float, ...]) -> tuple[list[list[torch.Tensor]], list[list[int]]]:
    models[:] = [model() for _ in range(WORLD)]
    store = dist.HashStore()
    with ThreadPoolExecutor(WORLD) as pool:
        results = list(pool.map(lambda rank: train(rank, store, speeds), range(WORLD)))
    return [r[0] for r in results], [r[1] for r in results]


@pytest.mark.parametrize("speeds", [(0.2, 1.0, 0.5, 1.0)])
def test_unequal_rows_change_no_parameter(speeds: tuple[float, ...]) -> None:
    even, even_rows = world((1.0,) * WORLD)
    uneven, rows = world(speeds)
    assert even_rows == [[4] * STEPS] * WORLD
    assert rows != even_rows
    for ours, theirs in zip(uneven, even, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=1e-12)
    assert all(torch.equal(a, b) for ranks in zip(*uneven, strict=True) for a, b in itertools.pairwise(ranks))
