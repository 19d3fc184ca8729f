"""Who this node is, as beats and `NodeJoined` say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class NodeIdentity:
    """`store_address` changes when the rendezvous store has to be started anew."""

    node: str
    host: str
    comm_host: str
    num_slots: int
    store_address: str = ""

    def fields(self) -> dict[str, Any]:
        return dict(vars(self))
