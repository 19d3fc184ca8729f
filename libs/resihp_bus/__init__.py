"""The message bus: the port, its two adapters, and a launcher for a local server. The only importer of nats.

Errors: `BusError` <- `BusUnavailable`, `BusRefused`; `ServerError` for the local server;
`KeysError` for the folder of keys.
"""

from resihp_bus.jetstream import JetStreamBus
from resihp_bus.keys import KeyFolder, KeysError
from resihp_bus.memory import MemoryBroker, MemoryBus
from resihp_bus.port import (
    Ack,
    Bus,
    BusError,
    BusRefused,
    BusUnavailable,
    Handler,
    Listener,
    Outcome,
    Reject,
    Responder,
    Retry,
    Stored,
    Subscription,
)
from resihp_bus.server import LocalNats, ServerError, find_binary
from resihp_bus.settings import JetStreamSettings
from resihp_bus.stats import BusStats

__all__ = [
    "Ack",
    "Bus",
    "BusError",
    "BusRefused",
    "BusStats",
    "BusUnavailable",
    "Handler",
    "JetStreamBus",
    "JetStreamSettings",
    "KeyFolder",
    "KeysError",
    "Listener",
    "LocalNats",
    "MemoryBroker",
    "MemoryBus",
    "Outcome",
    "Reject",
    "Responder",
    "Retry",
    "ServerError",
    "Stored",
    "Subscription",
    "find_binary",
]
