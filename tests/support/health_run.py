"""A job that is played by `PlayedJob`, judged without a bus."""

from __future__ import annotations

from resihp_detect import PeerConfig
from resihp_detector.health import JobHealth
from resihp_detector.layouts import Epoch, model_of
from resihp_detector.verdicts import Conclusion
from resihp_messages import event
from support.telemetry import PlayedJob

CONFIG = PeerConfig()


class Run:
    """A job that is played, and what its detector says."""

    def __init__(self, job: PlayedJob, config: PeerConfig = CONFIG) -> None:
        self.job = job
        self.health = JobHealth(self.epoch(is_first=True), config, lambda job, group: True)
        self.said: list[Conclusion] = []

    def epoch(self, *, is_first: bool = False) -> Epoch:
        plan = self.job.plan
        return Epoch("demo", plan.epoch, self.job.reconfiguration_id, plan, model_of(self.job.spec), is_first)

    def go_on(self, iterations: int) -> None:
        for _ in range(iterations):
            for report in self.job.next_iteration():
                self.said += self.health.take(self.epoch(), report)

    def events(self, *, suspicions: bool = False) -> list[tuple[str, tuple[int, ...]]]:
        return [
            (c.body.verdict.fault, c.body.verdict.ranks)
            for c in self.said
            if suspicions or not isinstance(c.body, event.DeviceSuspected)
        ]
