"""What both sides train: the same model, batches and optimizer. Needs torch alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS, WIDTH = 48, 128


def model() -> nn.Module:
    """0.9 M parameters; the same on every rank."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, 8 * WIDTH), nn.GELU(), nn.Linear(8 * WIDTH, 5 * WIDTH), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(5 * WIDTH, WIDTH))


def batch(iteration: int, index: int, world: int) -> tuple[Tensor, Tensor]:
    """A rank's rows of the global batch."""
    generator = torch.Generator().manual_seed(iteration)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    y = torch.randint(0, WIDTH, (ROWS,), generator=generator)
    least, extra = divmod(ROWS, world)
    first = index * least + min(index, extra)
    part = slice(first, first + least + (index < extra))
    return x[part], y[part]


def loss(outputs: Tensor, labels: Tensor, world: int) -> Tensor:
    """A sum over the rank's rows, divided by the rows of all, times the ranks over which gradients are averaged."""
    return nn.functional.cross_entropy(outputs, labels, reduction="sum") * world / ROWS


def optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-3)
