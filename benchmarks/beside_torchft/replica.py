"""What every replica under torchft is set up with, as torchft's manual has it. Runs in torchft's environment."""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo

DEFAULT_S = 60.0
"""torchft's own."""


def arguments() -> argparse.ArgumentParser:
    """What `benchmarks.beside_torchft.job` tells a replica."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--timeout", type=float, default=DEFAULT_S, help="seconds, of collectives")
    return parser


def store() -> dist.TCPStore:  # type: ignore[name-defined]
    """Every replica's own, for as long as its manager is there."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]


def manager(
    given: argparse.Namespace,
    store_port: int,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
) -> Manager:
    """One process per replica. All begin with the same parameters, so there is nothing to heal at the beginning; a
    replica that begins late takes over the state of one that is ahead."""

    def load(state: dict[str, Any]) -> None:
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])

    torch.set_num_threads(1)
    bound = timedelta(seconds=given.timeout)
    return Manager(
        pg=ProcessGroupGloo(timeout=bound),
        load_state_dict=load,
        state_dict=lambda: {"module": module.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store_port,
        lighthouse_addr=given.lighthouse,
        replica_id=f"replica{given.rank}",
        hostname="127.0.0.1",
        init_sync=False,
        timeout=bound,
    )
