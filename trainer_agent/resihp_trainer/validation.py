"""Probes on request: a matrix product on each named rank, a transfer over each named link, between two iterations.

All ranks of the world hold the order before any of them acts on it (the vote says so), and go through the links in one
order, so nobody waits for a peer that is elsewhere.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

import torch

from resihp_messages.link import Validate, Validated
from resihp_plan import edge_group_name
from resihp_trainer.comm.port import EpochGroups
from resihp_trainer.probe import Probe

TRANSFER_BYTES = 1 << 20
TRANSFERS = 5
"""The first one also waits for the peer to arrive; the shortest counts."""
_KEYS = 4095


def order_key(order: Validate | None) -> int:
    """A number for the vote: equal on ranks that hold the same order, 0 without one."""
    return 1 + zlib.crc32(order.validation_id.encode()) % _KEYS if order is not None else 0


def validate(
    order: Validate,
    rank: int,
    groups: EpochGroups,
    probe: Probe,
    pause: Callable[[float], None],
    iteration: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Validated | None:
    """Run this rank's part; None if it has none. Raises what waiting for a transfer raises."""
    links = {}
    for sender, receiver in order.links:
        name = edge_group_name(sender, receiver, forward=True)
        if rank in (sender, receiver) and name in groups:  # the plan may have changed since the order
            links[f"{sender}>{receiver}"] = _transfer_s(groups, name, sender, clock, probe.accelerator)
    if rank not in order.ranks and not links:
        return None
    return Validated(
        validation_id=order.validation_id,
        iteration=iteration,
        asked=order.ranks,
        compute_s=probe.seconds(pause) if rank in order.ranks else 0.0,
        link_s=links,
    )


def _transfer_s(
    groups: EpochGroups, name: str, sender: int, clock: Callable[[], float], accelerator: torch.device | None
) -> float:
    payload = torch.zeros(TRANSFER_BYTES, dtype=torch.uint8, device=accelerator)
    taken = []
    for _ in range(TRANSFERS):
        start = clock()
        groups[name].broadcast(payload, sender).wait()
        payload[0].item()  # a device may be behind the host
        taken.append(clock() - start)
    return min(taken[1:])
