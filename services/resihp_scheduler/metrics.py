"""What the scheduler measures about itself (docs/metrics.md)."""

from __future__ import annotations

from resihp_chassis import Metrics


class SchedulerMetrics:
    """All under `resihp_scheduler_`."""

    def __init__(self, metrics: Metrics) -> None:
        self.leader = metrics.gauge("leader_state", "1 while this process is the leader.")
        self.terms = metrics.counter("terms", "Times this process became the leader.")
        self.planning_s = metrics.histogram("planning_seconds", "From a verdict's receipt to the end of planning.")
        self.reconfigurations = metrics.counter("reconfigurations", "Closed changes of plan.", ["status"])
        self.relayed = metrics.counter("relayed_messages", "Messages published from the outbox.")
        self.summaries = metrics.counter("iteration_summaries", "Iteration summaries written.")
