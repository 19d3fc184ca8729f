"""The worker process: what runs in the zygote's child. One training thread, two link threads, gloo's own.

Exit codes: 0 finished or stopped, 1 failed by its own fault (a `Failed` frame says why), `link.EXIT_AGENT_LOST`.
"""

from __future__ import annotations

import os
import socket
import traceback
from pathlib import Path

import torch

from resihp_messages.link import Configure, Failed, Hello
from resihp_messages.page import PageState, ProgressPage
from resihp_trainer import allocator
from resihp_trainer.accelerator import accelerator_of, communicator_of
from resihp_trainer.context import Context
from resihp_trainer.device import Device
from resihp_trainer.engine import Engine, TrainingFailed
from resihp_trainer.faults import Faults
from resihp_trainer.interpreter import Waits
from resihp_trainer.link import Link
from resihp_trainer.links import LinkSpeeds
from resihp_trainer.model import Pretrained
from resihp_trainer.reference import corpus_of, dtype_of, held_out_of, model_of
from resihp_trainer.watcher import Watcher

_FLUSH_S = 5.0


def main(rank: int, job: str, link_socket: socket.socket, page: ProgressPage) -> int:
    """Train as `rank` of `job` until the agent says stop or the job is finished; returns the exit code."""
    allocator.limit_arenas()
    torch.set_num_threads(1)
    page.place(epoch=0, iteration=0, state=PageState.STARTING)
    watcher = Watcher()
    channel = Link(link_socket, watcher.on_frame)
    channel.start()
    try:
        context = _context(rank, _await_configuration(watcher, page), page, watcher, channel)
        channel.send(Hello(rank=rank, pid=os.getpid()))
        Engine(context).run()
        code = 0
    except (TrainingFailed, ValueError) as error:  # what the user can mend: one line
        channel.send(Failed(error=str(error)[:4000]))
        code = 1
    except Exception as error:  # the trainer's border: whatever it is, the agent learns it before the process ends
        traceback.print_exc()
        channel.send(Failed(error=f"{type(error).__name__}: {error}"[:4000]))
        code = 1
    channel.flush(_FLUSH_S)
    return code


def _await_configuration(watcher: Watcher, page: ProgressPage) -> Configure:
    while True:
        order = watcher.next_order(0.1)
        page.tick()
        if isinstance(order, Configure):
            return order


def _context(rank: int, configure: Configure, page: ProgressPage, watcher: Watcher, channel: Link) -> Context:
    spec = configure.spec
    if spec.model.hf is not None:
        Pretrained(Path(spec.model.hf)).check(model_of(spec))
    device, links = Device(), LinkSpeeds()
    accelerator = accelerator_of(spec, configure.device_index)
    communicator = communicator_of(spec, host=configure.comm_host, page=page, accelerator=accelerator)
    watcher.attach(communicator)
    return Context(
        rank=rank,
        spec=spec,
        model=model_of(spec),
        dtype=dtype_of(spec),
        accelerator=accelerator,
        corpus=corpus_of(spec),
        held_out=held_out_of(spec),
        page=page,
        communicator=communicator,
        watcher=watcher,
        faults=Faults(spec.faults, rank, page, device, links, start=configure.start),
        send=channel.send,
        waits=Waits(communicator.take_waits),
        device=device,
        links=links,
    )
