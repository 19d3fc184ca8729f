"""One agent: zygote, store, workers, and the node's place on the bus."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import structlog

from resihp_agent.announcer import Announcer
from resihp_agent.attach import AttachedJobs, AttachListener
from resihp_agent.beats import Heart
from resihp_agent.commands import CommandHandler
from resihp_agent.errors import AgentError, DeclaredLost, StartFailed, ZygoteLost
from resihp_agent.frames import FrameHandler
from resihp_agent.identity import NodeIdentity
from resihp_agent.ledger import FencingLedger
from resihp_agent.outbox import Outbox
from resihp_agent.peers import PeerListener
from resihp_agent.settings import AgentSettings
from resihp_agent.supervisor import Supervisor
from resihp_agent.workdir import locked
from resihp_agent.zygote import Zygote
from resihp_bus.port import Bus, Subscription
from resihp_messages import Kind, event

log = structlog.get_logger(__name__)


class Agent:
    """`run` serves until `stop` is called; it raises an `AgentError` if the node cannot go on."""

    def __init__(self, settings: AgentSettings, bus: Bus, *, incarnation: str, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._bus = bus
        self._incarnation = incarnation
        self._clock = clock
        self.stopping = asyncio.Event()
        """Set it (or call `stop`) to make the agent leave in order."""
        self.on_ready: Callable[[], None] = lambda: None
        self._fatal: AgentError | None = None
        self._zygote: Zygote | None = None
        self._store_pid = 0
        self._restart: asyncio.Task[None] | None = None
        self.identity = NodeIdentity(settings.node, socket.gethostname(), settings.comm_host, settings.num_slots)
        self.outbox = Outbox(bus)
        self.announcer = Announcer(bus, self.outbox, node=settings.node, incarnation=incarnation)
        frames = FrameHandler(self.announcer, node=settings.node, clock=clock, link_grace_s=settings.link_grace_s)
        self.supervisor = Supervisor(settings, self.announcer, clock=clock, on_frame=frames)
        self.attached = AttachedJobs(settings, self.announcer, clock=clock)
        self._listener = AttachListener(settings.attach_socket or settings.work_dir / "attach.sock", self.attached)
        self._commands: CommandHandler | None = None
        self._consumer: Subscription | None = None
        self.is_ready = False

    @property
    def has_zygote(self) -> bool:
        """Or needs none, because it launches no workers."""
        return (self._zygote is not None or not self._settings.zygote_command) and self._fatal is None

    @property
    def num_refused_commands(self) -> int:
        return self._commands.num_refused if self._commands is not None else 0

    @property
    def num_malformed_frames(self) -> int:
        return self._listener.num_malformed

    def stop(self) -> None:
        """Leave in order. Idempotent; may be called from a signal handler of the loop."""
        self.stopping.set()

    async def run(self) -> None:
        """Start, serve, and leave nothing behind. Raises `BusUnavailable` if the bus is not there at the start."""
        with locked(self._settings.work_dir):
            try:
                await self._bus.connect()
                if self._settings.zygote_command:
                    await self._start_zygote()
                async with self._background():
                    await self._join()
                    await self.stopping.wait()
                    self.is_ready = False
                    await self._leave()
            finally:
                if self._zygote is not None:
                    await self._zygote.close()
                await self._bus.close()
        if self._fatal is not None:
            raise self._fatal

    # --- start ----------------------------------------------------------------------------------------------------

    async def _start_zygote(self) -> None:
        self._zygote = await Zygote.start(
            self._settings.zygote_command,
            log_path=self._settings.work_dir / "zygote.log",
            on_exit=self._child_exited,
            on_lost=self._zygote_lost,
        )
        self.supervisor.attach(self._zygote)
        self._store_pid, self.identity.store_address = await self._zygote.store(
            self._settings.comm_host, timeout_s=self._settings.start_timeout_s
        )
        log.info("store_started", pid=self._store_pid, address=self.identity.store_address)

    @contextlib.asynccontextmanager
    async def _background(self) -> AsyncIterator[None]:
        heart = Heart(
            self.identity,
            self.supervisor,
            self.announcer,
            period_s=self._settings.beat_period_s,
            clock=self._clock,
            attached=self.attached.beats,
        )
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in (self.outbox.run(), heart.run(), self._watch())]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def _join(self) -> None:
        peers = PeerListener(
            self.supervisor.jobs,
            node=self._settings.node,
            incarnation=self._incarnation,
            clock=self._clock,
            on_declared_lost=self._declared_lost,
        )
        ledger = FencingLedger(self._settings.work_dir / "fencing.json")
        self._commands = CommandHandler(
            self._settings,
            self.supervisor,
            self.announcer,
            ledger,
            attached=self.attached,
            incarnation=self._incarnation,
            clock=self._clock,
        )
        await self._bus.listen(Kind.EVENT, peers)
        await self._bus.listen(Kind.EVENT, self.attached.on_event)
        self._announce()
        node = self._settings.node
        self._consumer = await self._bus.consume(f"agent-{node}", Kind.COMMAND, self._commands, detail=node)
        await self._listener.start()
        self.is_ready = True
        self.on_ready()
        log.info("agent_ready", node=node, token=ledger.token, incarnation=self._incarnation)

    def _announce(self) -> None:
        self.announcer.say(event.NodeJoined(**self.identity.fields()))

    # --- serve ----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            self.supervisor.watch()
            self.attached.watch()
            await asyncio.sleep(self._settings.watch_period_s)

    def _child_exited(self, pid: int, code: int | None) -> None:
        if pid != self._store_pid or self.stopping.is_set():
            return
        log.error("store_lost", pid=pid, code=code, address=self.identity.store_address)
        self._restart = asyncio.get_running_loop().create_task(self._restart_store())

    async def _restart_store(self) -> None:
        """Training goes on without a store; only the next epoch needs one, and learns its address from `NodeJoined`."""
        assert self._zygote is not None
        try:
            self._store_pid, self.identity.store_address = await self._zygote.store(self._settings.comm_host)
        except StartFailed as error:
            self._die(ZygoteLost(f"the rendezvous store is gone and cannot be started anew: {error}"))
            return
        log.info("store_started", pid=self._store_pid, address=self.identity.store_address)
        self._announce()

    def _zygote_lost(self, reason: str) -> None:
        self._die(ZygoteLost(f"the zygote is gone ({reason}); see {self._settings.work_dir / 'zygote.log'}"))

    def _declared_lost(self, advice: str) -> None:
        self._die(DeclaredLost(f"node {self._settings.node} was given up by the detector: {advice}"))

    def _die(self, error: AgentError) -> None:
        if self._fatal is None and not self.stopping.is_set():
            log.error("agent_cannot_go_on", error=str(error))
            self._fatal = error
            self.supervisor.lose_all(str(error))
        self.stopping.set()

    # --- leave ----------------------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        patience_s = self._settings.drain_timeout_s
        await self._listener.close()
        if self._consumer is not None:
            with contextlib.suppress(TimeoutError):  # a start in progress may hang: its worker dies with the zygote
                await asyncio.wait_for(self._consumer.stop(), 0.1 * patience_s)
        await self.supervisor.stop_all("the agent stops", timeout_s=0.45 * patience_s)
        self.announcer.say(event.NodeLeft(node=self._settings.node))
        if not await self.outbox.flush(0.35 * patience_s):
            log.error("messages_not_delivered", num=self.outbox.depth)
