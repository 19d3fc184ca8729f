"""A worker without torch: speaks the link's frames, "trains" by counting, and misbehaves on request.

It runs in the real zygote's fork. Its script travels in `spec.data.path`: JSON, rank -> "deed@iteration". Deeds:
`exit0`, `raise`, `fail` (says `Failed`), `mute` (runs on without a sign of life), `children` (two helper processes),
`broken` (reports a failed collective), `unlink` (closes its link and stays), `slowstart` (silent for 1 s at first).
"""

from __future__ import annotations

import json
import os
import select
import socket
import time

from resihp_messages import JobSpec, MalformedMessage, link
from resihp_messages.page import PageState, ProgressPage

ITERATION_S = 0.02
EXIT_AGENT_LOST = 75


def script(**deeds: str) -> str:
    """`script(r1="exit0@3")` -> a value for `spec.data.path`."""
    return json.dumps({name.removeprefix("r"): deed for name, deed in deeds.items()})


class ScriptedWorker:
    """One worker; `run` returns its exit code."""

    def __init__(self, rank: int, sock: socket.socket, page: ProgressPage) -> None:
        self.rank, self.sock, self.page = rank, sock, page
        self.received = b""
        self.spec = JobSpec()
        self.deed, self.deed_iteration = "", 0
        self.plan: link.InstallPlan | None = None
        self.held: link.InstallPlan | None = None
        self.committed = 0
        self.first_of_epoch = False

    def run(self) -> int:
        while True:
            self.page.tick()
            for message in self.frames(ITERATION_S):
                code = self.on_frame(message)
                if code is not None:
                    return code
            if self.plan is not None:
                code = self.iterate()
                if code is not None:
                    return code

    def frames(self, timeout_s: float) -> list[link.DownFrame]:
        if not select.select([self.sock], [], [], timeout_s)[0]:
            return []
        chunk = self.sock.recv(1 << 16)
        if not chunk:
            os._exit(EXIT_AGENT_LOST)
        self.received += chunk
        found = []
        while len(self.received) >= 4:
            stop = 4 + link.payload_length(self.received[:4])
            if len(self.received) < stop:
                break
            try:
                found.append(link.parse_down(self.received[4:stop]))
            except MalformedMessage as error:
                raise SystemExit(3) from error
            self.received = self.received[stop:]
        return found

    def send(self, message: link.UpFrame) -> None:
        self.sock.sendall(link.frame(message))

    def on_frame(self, message: link.DownFrame) -> int | None:
        match message:
            case link.Configure():
                self.spec = message.spec
                deeds = json.loads(self.spec.data.path or "{}")
                self.deed, _, at = deeds.get(str(self.rank), "").partition("@")
                self.deed_iteration = int(at or 0)
                if self.deed == "slowstart":
                    time.sleep(1.0)
                if self.deed == "children":
                    for _ in range(2):
                        if os.fork() == 0:
                            time.sleep(600)
                            os._exit(0)
                self.page.place(epoch=0, iteration=0, state=PageState.WAITING)
                self.send(link.Hello(rank=self.rank, pid=os.getpid()))
            case link.InstallPlan(mode="planned"):
                self.held = message
                self.say_held(message)
            case link.InstallPlan():
                self.say_held(message)
                self.install(message)
            case link.AbortEpoch():
                world = set() if self.plan is None else _world(self.plan)
                if self.plan and (world & set(message.dead_ranks) or message.epoch == self.plan.epoch):
                    epoch, self.plan, self.held = self.plan.epoch, None, None
                    self.page.place(epoch=epoch, iteration=self.committed, state=PageState.WAITING)
                    delay = max(0.0, time.monotonic() - message.noticed_s)
                    self.send(link.EpochAborted(epoch=epoch, committed=self.committed, abort_s=delay))
            case link.FinishNow():
                return self.finish()
            case link.StopNow():
                return 0
        return None

    def say_held(self, plan: link.InstallPlan) -> None:
        self.send(link.PlanHeld(epoch=plan.epoch, reconfiguration_id=plan.reconfiguration_id, digest=plan.digest))

    def install(self, plan: link.InstallPlan) -> None:
        self.plan, self.held, self.first_of_epoch = plan, None, True
        self.page.place(epoch=plan.epoch, iteration=self.committed + 1, state=PageState.TRAINING)
        self.send(
            link.PlanInstalled(
                epoch=plan.epoch,
                reconfiguration_id=plan.reconfiguration_id,
                digest=plan.digest,
                committed=self.committed,
                abort_s=0.0,
                rebuild_s=0.01,
                move_s=0.02,
                bytes_received=100 * (self.rank + 1),
                digests_equal=True,
            )
        )

    def iterate(self) -> int | None:
        assert self.plan is not None
        iteration = self.committed + 1
        self.page.place(epoch=self.plan.epoch, iteration=iteration, state=PageState.TRAINING)
        if self.deed and iteration == self.deed_iteration:
            deed, self.deed = self.deed, ""
            code = self.misbehave(deed, iteration)
            if code is not None or self.plan is None:
                return code
        self.page.operation()
        self.committed = iteration
        self.send(committed(self.plan.epoch, iteration, first=self.first_of_epoch, loss=1.0 / iteration))
        self.first_of_epoch = False
        if self.held is not None:
            self.install(self.held)
        return self.finish() if self.committed >= self.spec.iterations else None

    def misbehave(self, deed: str, iteration: int) -> int | None:
        assert self.plan is not None
        match deed:
            case "exit0":
                return 0
            case "raise":
                raise ZeroDivisionError("scripted")
            case "fail":
                self.send(link.Failed(error="scripted failure"))
                return 1
            case "mute":
                while True:
                    time.sleep(0.01)
            case "unlink":
                self.sock.close()
                while True:
                    self.page.tick()
                    time.sleep(0.01)
            case "broken":
                epoch, self.plan = self.plan.epoch, None
                self.page.place(epoch=epoch, iteration=iteration, state=PageState.WAITING)
                self.send(
                    link.CommunicationFailed(epoch=epoch, group="tp0", error="connection reset", iteration=iteration)
                )
        return None

    def finish(self) -> int:
        self.page.place(epoch=self.plan.epoch if self.plan else 0, iteration=self.committed, state=PageState.FINISHING)
        self.send(
            link.Finished(
                committed=self.committed, samples_expected=4, samples_once=4, final_loss=0.5, peak_rss_bytes=1000
            )
        )
        return 0


def committed(epoch: int, iteration: int, *, first: bool = False, loss: float | None = 1.0) -> link.IterationCommitted:
    """A plausible frame."""
    return link.IterationCommitted(
        epoch=epoch,
        iteration=iteration,
        first_of_epoch=first,
        step_s=0.02,
        forward_s=0.01,
        backward_s=0.005,
        tp_wait_s=0.0,
        pp_wait_s=0.0,
        dp_wait_s=0.0,
        tokens=64,
        sum_sq_len=4096,
        rss_bytes=1 << 20,
        loss=loss,
        global_tokens=256,
        samples_expected=4,
        samples_once=4,
        redo_s=0.02 if first else 0.0,
    )


def _world(plan: link.InstallPlan) -> set[int]:
    from resihp_plan.plan import ParallelPlan

    return set(ParallelPlan.from_dict(plan.plan).world)


def main(rank: int, job: str, sock: socket.socket, page: ProgressPage) -> int:
    """Entry point for the zygote."""
    return ScriptedWorker(rank, sock, page).run()
