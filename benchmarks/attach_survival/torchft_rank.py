"""One replica under torchft, started by `benchmarks.beside_torchft.job` in an environment of its own that has torchft.

`--gradients ddp` is the loop of torchft's manual: `Manager`, its `DistributedDataParallel`, its `Optimizer`. In version
0.2.0 that hook ends a survivor of a death in mid-collective (gloo raises in `wait`, the manager notes it, the hook then
asserts that a future is there). `--gradients manager` sums them up in one tensor with `Manager.allreduce` instead.
"""

from __future__ import annotations

import torch
from torchft import DistributedDataParallel, Manager, Optimizer

from benchmarks.attach_survival import model as plain
from benchmarks.beside_torchft import replica
from benchmarks.beside_torchft.commits import say


def main() -> None:
    """Train until killed."""
    parser = replica.arguments()
    parser.add_argument("--gradients", choices=("ddp", "manager"), required=True)
    given = parser.parse_args()
    module = plain.model()
    inner = plain.optimizer(module)
    store = replica.store()
    manager = replica.manager(given, store.port, module, inner)
    model = DistributedDataParallel(manager, module) if given.gradients == "ddp" else module
    optimizer = Optimizer(manager, inner)
    while True:
        optimizer.zero_grad()  # begins a quorum
        step, world = manager.current_step(), manager.num_participants()
        x, y = plain.batch(step + 1, manager.participating_rank() or 0, world)
        plain.loss(model(x), y, world).backward()  # type: ignore[no-untyped-call]
        if given.gradients == "manager":
            average(manager, module)
        optimizer.step()
        if manager.current_step() > step:
            say(given.rank, step + 1, world)


def average(manager: Manager, module: torch.nn.Module) -> None:
    """All gradients, in one collective."""
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    flat = torch.cat([g.view(-1) for g in gradients])
    manager.allreduce(flat).wait()
    for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


if __name__ == "__main__":
    main()
