"""Many simulated streams of what an attached rank measures: compute seconds, tokens, squared lengths; 2 % noise.

The package's own scoring runs if it can be imported, else its published rule.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.attach_stragglers.sections import THRESHOLD
from benchmarks.report import table
from resihp_detect import DeviceLevel
from resihp_detect.verdict import VerdictKind

RANKS, HEALTHY, AFTER, CULPRIT = 4, 200, 100, 2


@dataclass
class Stream:
    """Of one job: seconds and work of every rank, iteration by iteration; `waits`: what a section around the backward
    pass of DDP sees instead, which ends when the slowest rank's gradients are there."""

    seconds: np.ndarray[Any, Any]
    work: np.ndarray[Any, Any]

    @property
    def waits(self) -> np.ndarray[Any, Any]:
        return np.broadcast_to(self.seconds.max(axis=1, keepdims=True), self.seconds.shape)


def stream(seed: int, factor: float, spread: float) -> Stream:
    """Rank 2 takes `factor` times as long from iteration 200 on. `spread`: of the logarithm of documents' lengths."""
    rng = np.random.default_rng(seed)
    documents = rng.lognormal(6.0, spread, (HEALTHY + AFTER, RANKS, 8)).clip(16, 4096)
    tokens, squares = documents.sum(-1), (documents**2).sum(-1)
    seconds = (4e-6 * tokens + 2e-9 * squares) * np.exp(rng.normal(0, 0.02, tokens.shape))
    seconds[HEALTHY:, CULPRIT] *= factor
    return Stream(seconds, np.stack([np.zeros_like(tokens), tokens, squares], axis=-1))


def ours(found: Stream, only_seconds: np.ndarray[Any, Any]) -> list[set[int]]:
    """Ranks called slow after each iteration."""
    names = [f"r{rank}" for rank in range(RANKS)]
    detector, slow, after = DeviceLevel({"dp": names}), set[int](), []
    for i in range(len(only_seconds)):
        for verdict in detector.observe(i + 1, only_seconds[i][None, :, None], found.work[i][None]):
            rank = names.index(verdict.device) if verdict.device in names else -1
            if verdict.kind is VerdictKind.DEVICE_SLOW:
                slow.add(rank)
            elif verdict.kind is VerdictKind.DEVICE_RECOVERED:
                slow.discard(rank)
        after.append(set(slow))
    return after


def published(medians: Sequence[float]) -> set[int]:
    """The rule in the package's manual: the fastest rank's median over one's own is the score."""
    return {rank for rank, own in enumerate(medians) if min(medians) / own < THRESHOLD}


def packaged(reporting: Any, statistic: Any) -> Callable[[Sequence[float]], set[int]]:
    """The package's own scoring; the all-reduce of medians between ranks is played."""
    generator = reporting.ReportGenerator(["relative_perf_scores"], gather_on_rank0=False)

    def judge(medians: Sequence[float]) -> set[int]:
        reference = {"step": min(medians)}
        scores = {
            rank: generator._compute_sections_perf_scores({"step": {statistic.MED: own}}, reference)["step"]
            for rank, own in enumerate(medians)
        }
        nodes = dict.fromkeys(scores, "n0")
        report = reporting.Report({}, {"step": scores}, {}, {}, nodes, {}, {}, 0.0, True, 0)
        named = report.identify_stragglers(section_rel_threshold=THRESHOLD)["straggler_sections_relative"]
        return {straggler.rank for straggler in named.get("step", ())}

    return judge


def theirs(judge: Callable[[Sequence[float]], set[int]], seconds: np.ndarray[Any, Any], every: int) -> list[set[int]]:
    """A report every so many iterations, on the medians since the last one."""
    slow, after = set[int](), []
    for i in range(len(seconds)):
        if (i + 1) % every == 0:
            slow = judge([float(m) for m in np.median(seconds[i + 1 - every : i + 1], axis=0)])
        after.append(slow)
    return after


@dataclass
class Score:
    """Over many streams."""

    delays: list[int] = field(default_factory=list)
    missed: int = 0
    false: int = 0
    """Alarms, counted where they begin, of ranks that are not slow."""
    cost_s: list[float] = field(default_factory=list)
    """Per iteration of all ranks."""

    def add(self, flags: Sequence[set[int]], factor: float, taken_s: float) -> None:
        self.cost_s.append(taken_s / len(flags))
        before: set[int] = set()
        for i, now in enumerate(flags):
            right = {CULPRIT} if factor > 1 and i >= HEALTHY else set()
            self.false += len(now - before - right)
            before = now
        if factor > 1:
            first = next((i for i in range(HEALTHY, len(flags)) if CULPRIT in flags[i]), None)
            if first is None:
                self.missed += 1
            else:
                self.delays.append(first - HEALTHY + 1)


def compare(name: str, method: Callable[[Stream], list[set[int]]], seeds: int, spread: float) -> list[str]:
    """A row of the table."""
    cells, false, costs = [], 0, list[float]()
    for factor in (1.2, 1.3, 2.0, 1.0):
        score = Score()
        for seed in range(seeds):
            found = stream(seed, factor, spread)
            begun_s = time.process_time()
            score.add(method(found), factor, time.process_time() - begun_s)
        false, costs = false + score.false, costs + score.cost_s
        if factor > 1:
            middle = f"{statistics.median(score.delays):g}" if score.delays else "-"
            cells.append(f"{len(score.delays)} of {seeds}, {middle}")
    return [name, *cells, str(false), f"{1e6 * statistics.median(costs):.0f}"]


def body(seeds: int, package: str | None) -> str:
    """Text and tables. `package`: folder that holds nvidia_resiliency_ext."""
    judge: Callable[[Sequence[float]], set[int]] = published
    rule = "its published rule"
    if package:
        sys.path.insert(0, package)
        from nvidia_resiliency_ext.straggler import reporting
        from nvidia_resiliency_ext.straggler.statistics import Statistic

        judge, rule = packaged(reporting, Statistic), "the package's own scoring"
    methods: dict[str, Callable[[Stream], list[set[int]]]] = {
        "ResiHP, compute and lengths": lambda s: ours(s, s.seconds),
        "sections, compute only, report every 10": lambda s: theirs(judge, s.seconds, 10),
        "sections, compute only, report every 50": lambda s: theirs(judge, s.seconds, 50),
        "sections around DDP's backward, every 10": lambda s: theirs(judge, s.waits, 10),
    }
    header = ("", "1.2x: named, delay", "1.3x", "2x", "false alarms", "us per iteration")
    tables = []
    for title, spread in (("documents of varying length (log-normal, 0.8)", 0.8), ("equal documents", 0.0)):
        rows = [compare(name, method, seeds, spread) for name, method in methods.items()]
        tables.append(f"### Simulated, {title}\n\n{table(header, rows)}")
    text = (
        f"**Simulated**: {seeds} streams of 4 ranks per factor, 8 documents per rank and iteration; rank 2 is "
        f"slow from iteration {HEALTHY} on, for {AFTER} iterations. Delays in iterations (median); a rank that is "
        "called slow by chance while it is slow counts as named. False alarms: of healthy ranks, and of rank 2 while "
        f"healthy, in all {seeds * 4 * (HEALTHY + AFTER)} iterations. Sections: NVIDIA's resiliency package "
        f"({rule}; default threshold {THRESHOLD}, which 1.2x and 1.3x do not reach by themselves). Processor time is "
        "that of the decision for all ranks, without any transport.\n\nA section around the backward pass of DDP ends "
        "on all ranks when the slowest one's gradients are there, so nobody stands out; our client subtracts that wait."
    )
    return "\n\n".join(("## Simulated streams", text, *tables))
