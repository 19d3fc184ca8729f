"""The detector's process: cold start, live messages, judgement, publication."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from resihp_bus.port import Ack, Bus, BusError, BusUnavailable, Outcome, Retry
from resihp_chassis import Clock
from resihp_detector import verdicts
from resihp_detector.fleet import AgentStart, Fleet, Standing, ranks_of
from resihp_detector.links import Links
from resihp_detector.picture import Picture
from resihp_detector.settings import DetectorSettings
from resihp_detector.verdicts import Conclusion
from resihp_detector.watch import HealthWatch
from resihp_messages import FLEET, AnyEnvelope, Body, Kind, event, request
from resihp_messages.report import NodeBeat

log = structlog.get_logger(__name__)

SOURCE = "detector"
DURABLE = "detector-event"
_REPLAY_GAP_S = 2.0
_ECHO_S = 1.0
"""An agent that was given up and still beats is told so at most this often."""


class Detector:
    """Verdicts of fail-stop faults. Each fault leads to one message id, whoever restarts when."""

    def __init__(self, settings: DetectorSettings, bus: Bus, clock: Clock, *, incarnation: str) -> None:
        self._settings = settings
        self._bus = bus
        self._clock = clock
        self._incarnation = incarnation
        self._probe_job = f"{FLEET}-{incarnation}"[:64]
        """Nobody else is subscribed to it, and permissions can name the verb."""
        self._suspects: dict[tuple[str, str], float] = {}
        """Silent starts -> when the bus was proved to work."""
        self._echoed_s: dict[tuple[str, str], float] = {}
        self._judged_s: float | None = None
        self._one_at_a_time = asyncio.Lock()
        self.picture = Picture(Fleet(settings.liveness), Links(settings.link_grace_s))
        self.num_verdicts = 0
        self.num_beats = 0
        self.num_pardons = 0
        """How often everybody's silence began anew because the detector could not hear."""

    async def start(self) -> None:
        """Learn what was, subscribe to what will be. The bus must be connected."""
        for kind in (Kind.EVENT, Kind.ACK):  # before any beat: an old start must not seem newer than a live one
            await self._replay(kind)
        if self._settings.partition:  # workers and nodes are watched by the first of them
            await self._bus.listen(Kind.EVENT, self._on_ack)
            return
        self.picture.fleet.forgive(self._now())
        await self._bus.listen(Kind.BEAT, self._on_beat)
        await self._bus.listen(Kind.ACK, self._on_ack)
        await self._bus.serve("Probe", self._answer_probe, job=self._probe_job)
        await self._bus.consume(DURABLE, Kind.EVENT, self._on_event)

    async def run(self, turn: Callable[[], None] = lambda: None) -> None:
        """Judge until cancelled. `turn` is called each round."""
        while True:
            turn()
            try:
                if not self._settings.partition:
                    await self.judge()
            except BusUnavailable as error:  # the same conclusion comes again in the next round, with the same id
                log.warning("verdict_delayed", error=str(error))
            await self._clock.sleep(self._settings.judge_period_s)

    async def judge(self) -> None:
        """One look at open suspicions and at everybody's silence. Raises `BusUnavailable`."""
        self._forgive_if_deaf()
        for suspicion in self.picture.links.due(self._now()):
            await self.say(verdicts.of_link(suspicion))
            self.picture.links.settled(suspicion.job, suspicion.epoch)
        for conclusion in self.picture.validations.due():
            await self.say(conclusion)
            self.picture.validations.settled(conclusion.message_id)
        for hang in self.picture.hangs.due(self._now()):
            await self.say(hang)
            self.picture.hangs.settled(hang)
        for start in self.picture.fleet.replaced():
            await self._give_up(start, replaced=True)
        for start in await self._confirmed(self.picture.fleet.silent(self._now())):
            await self._give_up(start, replaced=False)

    # --- messages -------------------------------------------------------------------------------------------------

    async def _replay(self, kind: Kind) -> None:
        """Take in everything that is stored now."""
        last = await self._bus.last_sequence(kind)
        if not last:
            return
        async with contextlib.aclosing(self._bus.replay(kind, after_sequence=0)) as messages:
            while True:
                try:
                    stored = await asyncio.wait_for(anext(messages), _REPLAY_GAP_S)
                except TimeoutError:  # what is stored last has expired or is malformed: it never comes
                    return
                self.picture.take(stored.envelope, self._now(), is_past=True)
                if stored.sequence >= last:
                    return

    async def _on_ack(self, envelope: AnyEnvelope) -> None:
        self.picture.take(envelope, self._now())

    async def _on_event(self, envelope: AnyEnvelope) -> Outcome:
        self.picture.take(envelope, self._now())
        try:
            if isinstance(envelope.body, event.WorkerExited):
                await self._on_exit(envelope, envelope.body)
            elif isinstance(envelope.body, event.WorkerStalled) and not envelope.body.fenced:
                await self.say(verdicts.of_stall(envelope, envelope.body))
            for start in self.picture.fleet.replaced():
                await self._give_up(start, replaced=True)
        except BusUnavailable:
            return Retry()
        return Ack()

    async def _on_exit(self, envelope: AnyEnvelope, exited: event.WorkerExited) -> None:
        stalled = self.picture.stalls.get((envelope.job, exited.rank, exited.pid))
        incident = self.picture.slow.get((envelope.job, exited.rank))
        await self.say(verdicts.of_exit(envelope, exited, stalled, incident))
        self.picture.stalls.pop((envelope.job, exited.rank, exited.pid), None)

    async def _on_beat(self, envelope: AnyEnvelope) -> None:
        if not isinstance(envelope.body, NodeBeat):
            return
        self.num_beats += 1
        start = self.picture.fleet.beat(envelope.incarnation, envelope.body, self._now())
        if start.standing is Standing.LOST and start is self.picture.fleet.current(start.node):
            await self._echo(start)

    async def _answer_probe(self, envelope: AnyEnvelope) -> AnyEnvelope:
        return self.wrap(request.Reply(accepted=True), job=envelope.job)

    # --- silence --------------------------------------------------------------------------------------------------

    def _forgive_if_deaf(self) -> None:
        """Silence counts only while this process runs and its connection is up."""
        now_s, last_s = self._now(), self._judged_s
        self._judged_s = now_s
        paused = last_s is not None and now_s - last_s > self._settings.own_pause_s
        if paused or not self._bus.connected:
            self._forgive("paused" if paused else "bus down")

    def _forgive(self, why: str) -> None:
        self.num_pardons += 1
        self._suspects.clear()
        self.picture.fleet.forgive(self._now())
        log.debug("silence_forgiven", why=why)

    async def _confirmed(self, silent: tuple[AgentStart, ...]) -> list[AgentStart]:
        """Silent starts that stay silent although the bus has proved to carry messages to this process.

        A server that hangs, or a connection that is half open, looks like the death of all nodes at once.
        """
        keys = {(start.node, start.incarnation) for start in silent}
        self._suspects = {key: at_s for key, at_s in self._suspects.items() if key in keys}
        if keys - self._suspects.keys():
            if not await self._hears_itself():
                self._forgive("the bus does not answer")
                return []
            for key in keys - self._suspects.keys():
                log.warning("node_suspected", node=key[0], incarnation=key[1])
                self._suspects[key] = self._now()
        now_s = self._now()
        return [
            start
            for start in silent
            if now_s - self._suspects[start.node, start.incarnation] >= self._settings.confirm_s
        ]

    async def _hears_itself(self) -> bool:
        probe = self.wrap(request.Probe(), job=self._probe_job)
        try:
            await self._bus.request(probe, detail="Probe", timeout_s=self._settings.probe_timeout_s)
        except BusError:
            return False
        return True

    # --- verdicts -------------------------------------------------------------------------------------------------

    async def _give_up(self, start: AgentStart, *, replaced: bool) -> None:
        """One event for each job with devices there, then one for the fleet, which says that all have been told."""
        now_s, bound_s = self._now(), self.picture.fleet.bound_s(start)
        for job, ranks in (*ranks_of(start), (FLEET, ())):
            await self.say(verdicts.of_node(start, job, ranks, now_s=now_s, bound_s=bound_s, replaced=replaced))
            self.picture.links.died(job, 0, now_s)
        self.picture.fleet.lost(start.node, start.incarnation)
        self._suspects.pop((start.node, start.incarnation), None)

    async def _echo(self, start: AgentStart) -> None:
        """It was given up and lives: it must hear of it, or it would act as a zombie. Stored once, heard again."""
        key, now_s = (start.node, start.incarnation), self._now()
        if now_s - self._echoed_s.get(key, now_s - 2 * _ECHO_S) < _ECHO_S:
            return
        self._echoed_s[key] = now_s
        again = verdicts.of_node(
            start, FLEET, (), now_s=now_s, bound_s=self.picture.fleet.bound_s(start), replaced=False
        )
        try:
            await self._publish(again)
        except BusUnavailable:
            return

    async def say(self, conclusion: Conclusion) -> None:
        """Publish unless it is in the stream already. Raises `BusUnavailable`."""
        async with self._one_at_a_time:  # the judge and the handler of an event may conclude the same
            if conclusion.message_id in self.picture.said:
                return
            envelope = await self._publish(conclusion)
            self.picture.take(envelope, self._now())
        self.num_verdicts += 1
        verdict = conclusion.body.verdict
        log.warning("verdict", fault=verdict.fault, job=conclusion.job, node=verdict.node, ranks=verdict.ranks)

    async def _publish(self, conclusion: Conclusion) -> AnyEnvelope:
        name = conclusion.body.schema_name.partition(".")[0]
        envelope = self.wrap(
            conclusion.body,
            job=conclusion.job,
            epoch=conclusion.epoch,
            message_id=conclusion.message_id,
            correlation_id=conclusion.correlation_id,
        )
        await self._bus.publish(envelope, detail=name)
        return envelope

    def wrap(
        self, body: Body, *, job: str, epoch: int = 0, message_id: str | None = None, correlation_id: str = ""
    ) -> AnyEnvelope:
        return AnyEnvelope.of(
            body,
            job=job,
            source=SOURCE,
            incarnation=self._incarnation,
            epoch=epoch,
            message_id=message_id,
            correlation_id=correlation_id,
        )

    def _now(self) -> float:
        return self._clock.monotonic()


async def serve(
    detector: Detector,
    watch: HealthWatch,
    stopping: asyncio.Event,
    on_ready: Callable[[], None],
    turn: Callable[[], None],
) -> None:
    """Run until `stopping` is set; then keep what has been learned."""
    await detector.start()
    await watch.start()
    on_ready()
    loop = asyncio.get_running_loop()
    working = {loop.create_task(detector.run(turn)), loop.create_task(watch.run())}
    waiting = loop.create_task(stopping.wait())
    try:
        done, _ = await asyncio.wait({*working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        for task in done & working:
            task.result()
    finally:
        for task in (*working, waiting):
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await watch.keep()
