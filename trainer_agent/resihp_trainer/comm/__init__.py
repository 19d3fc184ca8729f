"""Process groups of an epoch: build, operate, abort, retire. `port` is the interface, gloo the backend for CPUs, NCCL
the one for GPUs (written and checked against a fake; not run on a GPU so far).
"""

from resihp_trainer.comm.communicator import GlooCommunicator
from resihp_trainer.comm.nccl_communicator import NcclCommunicator
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
    "NcclCommunicator",
    "Pending",
    "ReduceOp",
    "Ticker",
    "WaitSeconds",
]
