"""Which device a worker's tensors are on, and which communicator carries them: the job file's `backend`.

**nccl has never been run on a GPU**: `scripts/gpu_check.py` is there to do it.
"""

from __future__ import annotations

import torch

from resihp_messages import JobSpec
from resihp_trainer.comm.communicator import GlooCommunicator
from resihp_trainer.comm.nccl_communicator import NcclCommunicator
from resihp_trainer.comm.port import Ticker

HOST = torch.device("cpu")


def accelerator_of(spec: JobSpec, index: int) -> torch.device:
    """Where the job's tensors live in this process, the `index`-th of its node. Call it in the worker, never before a
    fork. Raises ValueError if this machine, or this build of torch, has no such GPU."""
    if spec.backend == "gloo":
        return HOST
    if not torch.cuda.is_available():
        raise ValueError("backend nccl: this build of torch sees no GPU on this machine")
    if index >= torch.cuda.device_count():
        raise ValueError(f"backend nccl: worker {index} of a node with {torch.cuda.device_count()} GPUs")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def communicator_of(spec: JobSpec, *, host: str, page: Ticker, accelerator: torch.device) -> GlooCommunicator:
    """For tensors on `accelerator`."""
    timeout_s = spec.timeouts.backend_s
    if accelerator.type == "cpu":
        return GlooCommunicator(host=host, page=page, timeout_s=timeout_s)
    return NcclCommunicator(host=host, page=page, device=accelerator, timeout_s=timeout_s)
