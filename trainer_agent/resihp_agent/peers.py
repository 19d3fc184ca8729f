"""News of other nodes: their deaths must break this node's collectives too.

Core subscription, live only: it is a short cut. The recovery plan, which names the dead, makes up for a missed message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from resihp_agent.job import LocalJob
from resihp_messages import AnyEnvelope, event

log = structlog.get_logger(__name__)


class PeerListener:
    """Listener of all events; sends aborts to local workers."""

    def __init__(
        self,
        jobs: Mapping[str, LocalJob],
        *,
        node: str,
        incarnation: str,
        clock: Callable[[], float],
        on_declared_lost: Callable[[str], None],
    ) -> None:
        self._jobs = jobs
        self._node = node
        self._incarnation = incarnation
        self._clock = clock
        self._on_declared_lost = on_declared_lost

    async def __call__(self, envelope: AnyEnvelope) -> None:
        body, job = envelope.body, self._jobs.get(envelope.job)
        match body:
            case event.NodeLost() if body.verdict.node == self._node:
                if body.evidence.get("incarnation") == self._incarnation:
                    self._on_declared_lost(body.advice)
            case event.WorkerExited() if job is not None and body.node != self._node:
                self._abort(job, {body.rank: body.start}, f"worker {body.rank} exited on node {body.node}")
            case event.WorkerLost() | event.WorkerFrozen() | event.NodeLost() if job is not None:
                if body.verdict.node != self._node:
                    dead = {rank: _start(body.evidence, rank, job) for rank in body.verdict.ranks}
                    self._abort(job, dead, f"{body.verdict.fault} on node {body.verdict.node}")
            case event.LinkLost() if job is not None:
                job.abort_epoch(envelope.epoch, noticed_s=self._clock(), reason="a link of this epoch broke")
            case _:
                pass

    def _abort(self, job: LocalJob, dead: Mapping[int, int], reason: str) -> None:
        new = job.abort(dead, noticed_s=self._clock(), reason=reason)
        if new:
            log.warning("remote_death", job=job.name, ranks=new, reason=reason)


def _start(evidence: Mapping[str, Any], rank: int, job: LocalJob) -> int:
    """Which start of the rank a verdict is about. One about a node names none: then it is the newest that is known
    here, since a node's ranks are started again only after the verdict, by commands that arrive behind it."""
    start = evidence.get("start")
    return start if isinstance(start, int) else job.start_of(rank)
