"""The engines of a whole job in threads of one process, on real gloo groups and a real store: for what needs no death.

What differs from workers: frames are handed over instead of sent, and nobody watches the progress pages.
"""

from __future__ import annotations

import asyncio
import mmap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from resihp_messages import JobSpec
from resihp_messages.link import InstallPlan, IterationCommitted, UpFrame
from resihp_messages.page import PAGE_BYTES, ProgressPage
from resihp_plan import ParallelPlan
from resihp_trainer.accelerator import HOST
from resihp_trainer.comm.communicator import GlooCommunicator
from resihp_trainer.context import Context
from resihp_trainer.device import Device
from resihp_trainer.engine import Engine
from resihp_trainer.faults import Faults
from resihp_trainer.interpreter import Waits
from resihp_trainer.reference import corpus_of, dtype_of, held_out_of, model_of
from resihp_trainer.store import start_server
from resihp_trainer.watcher import Watcher

F = TypeVar("F")
LIMIT_S = 100.0


@contextmanager
def store_address() -> Iterator[str]:
    """A store in a thread of this process."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(start_server("127.0.0.1"), loop).result(10)

    async def close() -> None:
        server.close()
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()

    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


class ThreadEngines:
    """One job. `frames[rank]` is everything that a rank said."""

    def __init__(self, spec: JobSpec, first: ParallelPlan, store: str, namespace: str) -> None:
        self.spec, self._store, self._namespace = spec, store, namespace
        self.plans: list[ParallelPlan] = []
        self.watchers = {rank: Watcher() for rank in first.world}
        self.frames: dict[int, list[UpFrame]] = {rank: [] for rank in first.world}
        self._later: dict[int, ParallelPlan] = {}
        self.install(first, "initial")

    def install(self, plan: ParallelPlan, mode: str) -> None:
        """Deliver a plan to all ranks."""
        ranks = sorted(self.watchers)
        command = InstallPlan.model_validate(
            {
                "mode": mode,
                "epoch": plan.epoch,
                "reconfiguration_id": f"{self._namespace}-{plan.epoch}",
                "plan": plan.to_dict(),
                "digest": plan.digest,
                "base_plans": [p.to_dict() for p in self.plans],
                "store_address": self._store,
                "placement": [{"node": "n0", "ranks": ranks, "starts": [0] * len(ranks)}],
            }
        )
        self.plans.append(plan)
        for watcher in self.watchers.values():
            watcher.on_frame(command)

    def change_after(self, iteration: int, plan: ParallelPlan) -> None:
        """A planned change, delivered when rank 0 has committed this iteration."""
        self._later[iteration] = plan

    def run(self) -> None:
        """To the end of the job. Raises what an engine raises."""
        with ThreadPoolExecutor(len(self.watchers)) as pool:
            for running in [pool.submit(self._run, rank) for rank in self.watchers]:
                running.result(LIMIT_S)

    def all(self, kind: type[F]) -> list[tuple[int, F]]:
        """(rank, frame) of every frame of a kind."""
        return [(rank, f) for rank, frames in self.frames.items() for f in frames if isinstance(f, kind)]

    def _run(self, rank: int) -> None:
        spec, page, watcher = self.spec, ProgressPage(mmap.mmap(-1, PAGE_BYTES)), self.watchers[rank]
        communicator, device = GlooCommunicator(host="127.0.0.1", page=page, timeout_s=LIMIT_S), Device()
        watcher.attach(communicator)
        context = Context(
            rank=rank,
            spec=spec,
            model=model_of(spec),
            dtype=dtype_of(spec),
            accelerator=HOST,
            corpus=corpus_of(spec),
            held_out=held_out_of(spec),
            page=page,
            communicator=communicator,
            watcher=watcher,
            faults=Faults(spec.faults, rank, page, device),
            send=self._hear(rank),
            waits=Waits(communicator.take_waits),
            device=device,
        )
        Engine(context).run()

    def _hear(self, rank: int) -> Callable[[UpFrame], None]:
        def hear(frame: UpFrame) -> None:
            self.frames[rank].append(frame)
            if rank == 0 and isinstance(frame, IterationCommitted) and frame.iteration in self._later:
                self.install(self._later.pop(frame.iteration), "planned")

        return hear
