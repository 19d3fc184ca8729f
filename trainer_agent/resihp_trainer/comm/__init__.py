"""Process groups of an epoch: build, operate, abort, retire. `port` is the interface, gloo the backend for CPUs."""

from resihp_trainer.comm.communicator import GlooCommunicator
from resihp_trainer.comm.port import (
    CommunicationFailed,
    Communicator,
    EpochAborted,
    EpochGroups,
    Group,
    GroupSpecification,
    Pending,
    ReduceOp,
    Ticker,
    WaitSeconds,
)

__all__ = [
    "CommunicationFailed",
    "Communicator",
    "EpochAborted",
    "EpochGroups",
    "GlooCommunicator",
    "Group",
    "GroupSpecification",
    "Pending",
    "ReduceOp",
    "Ticker",
    "WaitSeconds",
]
