"""The newest iterations of each job, rank by rank, in memory: what calibration and re-measured speeds come from."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from resihp_messages.report import IterationReport

MOST_KEPT, FEWEST_KEPT = 64, 16
"""Iterations per job; the fewer, the larger the job."""
ROWS = 200_000
"""Ranks times iterations per job, about: some 30 MB."""


@dataclass(frozen=True)
class RankSeconds:
    """One rank in one iteration: computing only, and what it worked on, summed over its micro-batches."""

    forward_s: float
    backward_s: float
    tp_wait_s: float
    num_units: int
    tokens: int
    sum_sq_len: int


@dataclass
class Measured:
    """One iteration, over all nodes that have reported it."""

    epoch: int
    step_s: float = 0.0
    """Slowest rank."""
    ranks: dict[int, RankSeconds] = field(default_factory=dict)


class Meter:
    """Fed with reports; read when a decision is made."""

    def __init__(self) -> None:
        self._jobs: defaultdict[str, OrderedDict[int, Measured]] = defaultdict(OrderedDict)

    def add(self, job: str, epoch: int, report: IterationReport) -> None:
        """Merge one node's report. One without units (older workers) is left out."""
        if not report.unit_tokens:
            return
        rows = self._jobs[job]
        row = rows.get(report.iteration)
        if row is None or row.epoch != epoch:
            row = rows[report.iteration] = Measured(epoch)
            kept = ROWS // max(1, *(len(m.ranks) for m in rows.values()))
            while len(rows) > min(MOST_KEPT, max(FEWEST_KEPT, kept)):
                rows.popitem(last=False)
        row.step_s = max(row.step_s, *report.step_s)
        for i, rank in enumerate(report.ranks):
            row.ranks[rank] = RankSeconds(
                report.forward_s[i],
                report.backward_s[i],
                report.tp_wait_s[i],
                num_units=len(report.unit_tokens[i]),
                tokens=report.tokens[i],
                sum_sq_len=report.sum_sq_len[i],
            )

    def complete(self, job: str, epoch: int, ranks: Collection[int], *, skip: int = 2) -> Mapping[int, Measured]:
        """Iterations of the epoch that all these ranks have reported, without the first `skip` of them."""
        rows: Mapping[int, Measured] = self._jobs.get(job, {})
        found = {k: m for k, m in rows.items() if m.epoch == epoch and m.ranks.keys() >= set(ranks)}
        first = min(found, default=0)
        return {k: m for k, m in sorted(found.items()) if k >= first + skip}

    def newest_epoch(self, job: str) -> int:
        """0 before the first report."""
        return max((m.epoch for m in self._jobs.get(job, {}).values()), default=0)

    def count(self, job: str, epoch: int) -> int:
        """Iterations of the epoch that are kept, complete or not."""
        return sum(m.epoch == epoch for m in self._jobs.get(job, {}).values())

    def forget(self, job: str) -> None:
        self._jobs.pop(job, None)
