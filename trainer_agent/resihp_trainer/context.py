"""What a worker is made of: the parts that the epoch loop works with, fixed for the life of the process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from resihp_messages import JobSpec
from resihp_messages.link import UpFrame
from resihp_messages.page import ProgressPage
from resihp_plan import ModelSpec
from resihp_trainer.comm.port import Communicator
from resihp_trainer.corpus import Corpus
from resihp_trainer.device import Device
from resihp_trainer.faults import Faults
from resihp_trainer.interpreter import Waits
from resihp_trainer.links import LinkSpeeds
from resihp_trainer.watcher import Watcher


@dataclass(frozen=True)
class Context:
    """`clock` is CLOCK_MONOTONIC, comparable with the agent's times on the same host. `send` queues a frame."""

    rank: int
    spec: JobSpec
    model: ModelSpec
    dtype: torch.dtype
    accelerator: torch.device
    """Where parameters and activations live. Not `device`, which is what this rank stands for."""
    corpus: Corpus
    held_out: Corpus | None
    """For evaluations; None: there are none."""
    page: ProgressPage
    communicator: Communicator
    watcher: Watcher
    faults: Faults
    send: Callable[[UpFrame], None]
    waits: Waits
    device: Device
    clock: Callable[[], float] = field(default=time.monotonic)
    links: LinkSpeeds = field(default_factory=LinkSpeeds)
