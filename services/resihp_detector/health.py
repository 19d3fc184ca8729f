"""The health of one job's devices: reports in, failure events and scores out. Pure; only their order matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from resihp_detect import JobLevel, PeerConfig, Row, Verdict, VerdictKind
from resihp_detector.layouts import Epoch
from resihp_detector.slowness import Scene, conclusion_of, incident_id
from resihp_detector.verdicts import Conclusion
from resihp_messages.report import HealthScores, IterationReport
from resihp_plan import MicroBatchWork, ModelSpec

IsMine = Callable[[str, str], bool]
"""(job, group) -> whether this process judges it."""


class JobHealth:
    """One run of a job, from the epoch in which it was first seen."""

    def __init__(self, epoch: Epoch, config: PeerConfig, is_mine: IsMine, *, before: JobHealth | None = None) -> None:
        """`config`: see `config_for`. `before`: an earlier run of the same job, whose late reports are to be known as
        such."""
        self.config = config
        self.scale = 1.0
        self.job = epoch.job
        self._is_mine: Callable[[str], bool] = lambda group: is_mine(epoch.job, group)
        self._level = JobLevel(epoch.plan, epoch.model, config, is_mine=self._is_mine)
        self._model = epoch.model
        self._number, self._reconfiguration_id = epoch.number, epoch.reconfiguration_id
        self._past: list[str] = [*before._past, before._reconfiguration_id][-64:] if before is not None else []
        self._nodes: dict[int, str] = {}
        self._incidents: dict[str, str] = {}
        """Device -> correlation id of what is suspected or known of it."""
        self._virtual_clock = self._processor_time = False
        self._scored = 0

    def is_past(self, epoch: Epoch) -> bool:
        """Whether the epoch is one that was left."""
        return epoch.reconfiguration_id in self._past or (
            not epoch.is_first and epoch.number < self._number and epoch.reconfiguration_id != self._reconfiguration_id
        )

    def continues(self, epoch: Epoch) -> bool:
        """Whether the epoch belongs to this run; a new run begins with a first plan."""
        return epoch.reconfiguration_id == self._reconfiguration_id or not epoch.is_first

    def tune(self, scale: float) -> None:
        """Judge from now on by thresholds of `scale` times the job's own; what has been learned, who is slow and
        half-collected evidence stay. Raises ValueError unless it is positive and finite.
        """
        if scale != self.scale:
            config = self.config.scaled(scale)
            self._level = JobLevel.restored(self._level.snapshot(), self._model, config, is_mine=self._is_mine)
            self.scale = scale

    def take(self, epoch: Epoch, report: IterationReport) -> tuple[Conclusion, ...]:
        """One report of an epoch that `continues` this run and is not past."""
        found: list[Conclusion] = []
        if epoch.reconfiguration_id != self._reconfiguration_id:
            found += self._conclude(self._level.enter(epoch.plan))
            self._past.append(self._reconfiguration_id)
            self._scored = 0
            self._number, self._reconfiguration_id = epoch.number, epoch.reconfiguration_id
        self._virtual_clock |= report.virtual_clock
        self._processor_time |= report.processor_time
        self._nodes.update(dict.fromkeys(report.ranks, report.node))
        found += self._conclude(self._level.observe(report.iteration, rows_of(report)))
        return tuple(found)

    def new_scores(self) -> HealthScores | None:
        """Scores of the newest judged iteration, if they were not asked for yet."""
        if self._level.judged <= self._scored:
            return None
        self._scored = self._level.judged
        scores = self._level.scores()
        ranks = tuple(sorted(scores))
        anybody = any(scores[rank][3] > 0 for rank in ranks)
        columns = list(zip(*(scores[rank] for rank in ranks), strict=True)) if anybody else []
        return HealthScores(
            iteration=self._scored,
            ranks=ranks,
            p=columns[0] if columns else (1.0,) * len(ranks),
            p_low=columns[1] if columns else (),
            p_high=columns[2] if columns else (),
            confidence=columns[3] if columns else (),
        )

    @property
    def place(self) -> tuple[int, str]:
        """Epoch and id of its reconfiguration."""
        return self._number, self._reconfiguration_id

    def _conclude(self, verdicts: tuple[Verdict, ...]) -> Iterator[Conclusion]:
        if not verdicts:
            return
        scene = Scene(
            self.job,
            self._number,
            self._reconfiguration_id,
            self._virtual_clock,
            self._processor_time,
            self._nodes,
            self._level.members(),
        )
        for verdict in verdicts:
            yield conclusion_of(verdict, scene, self._correlate(verdict, scene))

    def _correlate(self, verdict: Verdict, scene: Scene) -> str:
        """One id from suspicion to recovery of one fault."""
        device = verdict.device or verdict.group
        match verdict.kind:
            case VerdictKind.DEVICE_SUSPECTED | VerdictKind.DEVICE_SLOW | VerdictKind.LINK_SLOW | VerdictKind.JOB_SLOW:
                self._incidents[device] = incident_id(verdict, scene)
            case VerdictKind.STATE_DIVERGED:  # in several buckets, or again: one fault until the culprit is known
                self._incidents.setdefault(device, incident_id(verdict, scene))
            case (
                VerdictKind.DEVICE_RECOVERED
                | VerdictKind.LINK_RECOVERED
                | VerdictKind.JOB_RECOVERED
                | VerdictKind.STATE_CORRUPTED
            ):
                return self._incidents.pop(device, "")
            case _:
                return ""
        return self._incidents[device]

    def snapshot(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "model": {name: getattr(self._model, name) for name in ModelSpec.__dataclass_fields__},
            "number": self._number,
            "reconfiguration_id": self._reconfiguration_id,
            "past": self._past[-64:],
            "nodes": sorted(self._nodes.items()),
            "incidents": self._incidents,
            "virtual_clock": self._virtual_clock,
            "processor_time": self._processor_time,
            "config": asdict(self.config),
            "scale": self.scale,
            "scored": self._scored,
            "level": self._level.snapshot(),
        }

    @classmethod
    def restored(cls, job: str, state: Mapping[str, Any], is_mine: IsMine) -> JobHealth:
        """Go on from a snapshot, with its thresholds. Raises ValueError, KeyError or TypeError if it does not fit."""
        config = PeerConfig(**state["config"])
        model = ModelSpec(**state["model"])
        scale = float(state.get("scale", 1.0))
        level = JobLevel.restored(
            state["level"], model, config.scaled(scale), is_mine=lambda group: is_mine(job, group)
        )
        epoch = Epoch(job, state["number"], state["reconfiguration_id"], level.plan, model, is_first=False)
        health = cls(epoch, config, is_mine)
        health._level, health.scale = level, scale
        health._past = list(state["past"])
        health._nodes = dict(state["nodes"])
        health._incidents = dict(state["incidents"])
        health._virtual_clock, health._processor_time = state["virtual_clock"], state["processor_time"]
        health._scored = state["scored"]
        return health


def config_for(report: IterationReport) -> PeerConfig:
    """Thresholds for the seconds of the job whose first report this is."""
    return PeerConfig.for_clock(virtual=report.virtual_clock, processor_time=report.processor_time)


def rows_of(report: IterationReport) -> Iterator[Row]:
    """The columns of a report, rank by rank. While a rank announces a checkpoint, its seconds count as missing.

    Jobs that do not tell forward from backward have half of their seconds in each; of those that tell neither, the
    whole step counts.
    """
    units, probes, prints = report.unit_tokens, report.probe_s, report.fingerprints
    for i, rank in enumerate(report.ranks):
        is_announced = bool(report.phases_s) and "checkpoint" in report.phases_s[i]
        forward_s, backward_s = report.forward_s[i], report.backward_s[i]
        is_known = forward_s + backward_s > 0
        if not (forward_s and backward_s):
            forward_s = backward_s = 0.5 * (forward_s + backward_s)
        yield Row(
            rank,
            0.0 if is_announced else forward_s,
            0.0 if is_announced else backward_s,
            len(units[i]) if units else 1,
            report.tokens[i],
            report.sum_sq_len[i],
            probes[i] if probes else 0.0,
            prints[i] if prints else {},
            report.distances[i] if report.distances else {},
            0.0 if report.virtual_clock else report.tp_wait_s[i],  # collectives are not on the virtual clock
            report.link_wait_s[i] if report.link_wait_s else {},
            0.0 if is_known or is_announced else report.step_s[i],
            () if is_known else _works(report, i),
        )


def _works(report: IterationReport, i: int) -> tuple[MicroBatchWork, ...]:
    """The micro-batches of one rank; none if their lengths are not known."""
    if not report.unit_tokens or len(report.unit_sum_sq_len) != len(report.ranks):
        return ()
    units = zip(report.unit_tokens[i], report.unit_sum_sq_len[i], strict=False)
    return tuple(MicroBatchWork(tokens, squares) for tokens, squares in units if tokens > 0)
