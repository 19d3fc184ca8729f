"""One replica under torchft, as its manual has it: `Manager`, its `DistributedDataParallel`, its `Optimizer`.

Runs in an environment of its own that has torchft. Prints what `launch_rank` prints.
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from benchmarks.attach_survival import model as plain
from benchmarks.attach_survival.commits import say


def main() -> None:
    """Train until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--timeout", type=float, help="seconds, of collectives; default: torchft's")
    options = parser.parse_args()
    torch.set_num_threads(1)
    module = plain.model()
    inner = plain.optimizer(module)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    bounds: dict[str, Any] = {}
    if options.timeout is not None:
        bounds = {"timeout": timedelta(seconds=options.timeout), "quorum_timeout": timedelta(seconds=60)}
    manager = Manager(
        pg=ProcessGroupGloo(timeout=bounds.get("timeout", timedelta(seconds=60))),
        load_state_dict=lambda state: _load(module, inner, state),
        state_dict=lambda: {"module": module.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=options.lighthouse,
        replica_id=f"replica{options.rank}",
        hostname="127.0.0.1",
        init_sync=False,  # all begin with the same parameters
        **bounds,
    )
    ddp, optimizer = DistributedDataParallel(manager, module), Optimizer(manager, inner)
    while True:
        optimizer.zero_grad()  # begins a quorum
        step, world = manager.current_step(), manager.num_participants()
        x, y = plain.batch(step + 1, manager.participating_rank() or 0, world)
        plain.loss(ddp(x), y, world).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if manager.current_step() > step:
            say(options.rank, step + 1, world)


def _load(module: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    module.load_state_dict(state["module"])
    optimizer.load_state_dict(state["optimizer"])


if __name__ == "__main__":
    main()
