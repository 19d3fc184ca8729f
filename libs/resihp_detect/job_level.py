"""All detectors of one job, over its epochs: slow devices and TP groups, devices that stand by, corrupted state.

Fed with what each rank reports of each iteration, in the order of the report stream; so two detectors that read the
same stream say the same, and one that was restarted from a snapshot goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from resihp_detect.assembly import Assembly, Frame, Record
from resihp_detect.config import PeerConfig
from resihp_detect.device_level import DeviceLevel
from resihp_detect.device_memory import DeviceMemory
from resihp_detect.fingerprints import Divergence, Fingerprints
from resihp_detect.group_links import GroupLinks
from resihp_detect.probe_level import GROUP as STANDBY
from resihp_detect.probe_level import ProbeLevel
from resihp_detect.redone import CONFIDENCE, Damage, Redone, Sums
from resihp_detect.step_level import JOB, StepLevel
from resihp_detect.verdict import Verdict, VerdictKind
from resihp_detect.work import Share, peer_groups, shares
from resihp_plan import MicroBatchWork, ModelSpec, ParallelPlan, gradient_buckets, group_name
from resihp_plan.groups import GroupKind

STATE = "state"
"""Group of verdicts about fingerprints."""
HEALTHY = (1.0, 1.0, 1.0, 0.0)


@dataclass(frozen=True)
class Row:
    """What one rank did in one iteration. Seconds are compute only."""

    rank: int
    forward_s: float
    backward_s: float
    num_units: int
    """Micro-batches that it executed."""
    tokens: int
    sum_sq_len: int
    probe_s: float = 0.0
    """0: not probed."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    distances: Mapping[str, Sums] = field(default_factory=dict)
    """Bucket -> how far the rank's earlier state of this iteration was from the redone one."""
    tp_wait_s: float = 0.0
    """Waited in collectives of its TP group; 0: not known."""
    link_s: Mapping[str, float] = field(default_factory=dict)
    """Waited in communication groups, by their names; those that are missing are not known."""
    step_s: float = 0.0
    """Only of a rank whose compute seconds are not known: what its whole step took."""
    works: tuple[MicroBatchWork, ...] = ()
    """With `step_s`: its micro-batches, if their lengths are known."""


class JobLevel:
    """Detector of one job from its first plan on. `is_mine`: the groups that this process judges, if several share the
    job; `standby`, `state` and `job` are groups, too.
    """

    def __init__(
        self,
        plan: ParallelPlan,
        model: ModelSpec,
        config: PeerConfig | None = None,
        *,
        is_mine: Callable[[str], bool] = lambda group: True,
    ) -> None:
        self.config, self.model, self._is_mine = config or PeerConfig(), model, is_mine
        self.probes = ProbeLevel(self.config)
        self.level: DeviceLevel | None = None
        self._memory: dict[str, DeviceMemory] = {}
        self._shares: Mapping[int, Share] = {}
        self.judged = 0
        """Newest iteration that was judged."""
        self._state: Fingerprints | None = None
        self._probed: dict[str, int] = {}
        self._begin(plan)

    def enter(self, plan: ParallelPlan) -> tuple[Verdict, ...]:
        """The next epoch of the job. What is known about devices and healthy time is carried over; ranks that are in no
        group of the new plan's world are forgotten. Returns what the last iterations of the old epoch still say.
        """
        late = tuple(v for frame in self._assembly.flush() for v in self._judge(frame)) if self._assembly else ()
        if self.level is not None:
            self._memory |= self.level.memory()
        world = {str(rank) for rank in plan.world}
        self._memory = {name: known for name, known in self._memory.items() if name in world}
        self._begin(plan)
        return late

    def _begin(self, plan: ParallelPlan) -> None:
        self.plan, self.judged, self._probed = plan, 0, {}  # after a return to an older state iterations come again
        before = self._shares
        self._shares = shares(plan, self.model)
        groups = {g: names for g, names in peer_groups(self._shares).items() if self._is_mine(g)}
        old, self.level, self._assembly = self.level, None, None
        if groups:
            self.level = self._successor(old, groups, before)
            self._assembly = Assembly(self.level.roster, num_directions=2)
        owners = {rank for b in gradient_buckets(plan, self.model) if b.is_shared for rank in b.owners}
        mine = {int(name) for names in groups.values() for name in names}
        kinds = (GroupLinks.of_tp_groups(plan, mine, self.config), GroupLinks.of_edges(plan, mine, self.config))
        self._links = [links for links in kinds if links is not None]
        self._steps: StepLevel | None = None
        agreed = self._state.agreed if self._state is not None else None
        watches = self._is_mine(STATE) and bool(owners)
        self._state = Fingerprints(len(owners), agreed=agreed) if watches else None
        self._redone = Redone(len(owners)) if watches else None
        for rank in plan.active:
            self.probes.leave(str(rank))
        for rank in plan.standby if self._is_mine(STANDBY) else ():
            known = self._memory.get(str(rank), DeviceMemory())
            self.probes.stand_by(str(rank), known.slow_since or 0, p=known.p)

    def _successor(
        self, old: DeviceLevel | None, groups: Mapping[str, tuple[str, ...]], before: Mapping[int, Share]
    ) -> DeviceLevel:
        if old is None:
            level = DeviceLevel(groups, self.config, num_directions=2)
            return level.successor(groups, {}, memory=self._memory) if self._memory else level
        nearest = {g: (g if g in old.roster.groups else old.roster.groups[-1], 1.0) for g in groups}
        moved = [name for names in groups.values() for name in names if self._is_new_share(int(name), before)]
        return old.successor(groups, nearest, memory=self._memory, moved=moved)

    def _is_new_share(self, rank: int, before: Mapping[int, Share]) -> bool:
        known, now = before.get(rank), self._shares[rank]
        return known is None or known.group != now.group or abs(known.fraction / now.fraction - 1.0) > 0.01

    # --- observing ------------------------------------------------------------------------------------------------

    def observe(self, iteration: int, rows: Iterable[Row]) -> tuple[Verdict, ...]:
        """What some ranks did in one iteration of the present epoch. Reports may come in any order and twice."""
        verdicts: list[Verdict] = []
        frames: list[Frame] = []
        for row in rows:
            share = self._shares.get(row.rank)
            if share is None:
                verdicts += self._observe_standby(iteration, row)
            elif self._assembly is not None and self._is_mine(share.group):
                record = Record(
                    iteration,
                    str(row.rank),
                    (row.forward_s, row.backward_s),
                    share.work(row.num_units, row.tokens, row.sum_sq_len),
                )
                for links in self._links:
                    links.note(iteration, row.rank, self._waits_of(row), row.tokens, row.num_units)
                frames += self._assembly.add(record)
            if row.step_s > 0 and share is not None and self._is_mine(JOB):
                self._steps = self._steps or StepLevel(self.plan, self.model, self.config)
                verdicts += self._steps.note(iteration, row.rank, row.step_s, row.works)
            if row.probe_s > 0 and share is not None and self._is_mine(STANDBY):
                self.probes.learn(str(row.rank), row.probe_s, p=self._p(str(row.rank)))
            if row.fingerprints and self._state is not None:
                verdicts += (_diverged(d) for d in self._state.add(iteration, row.rank, row.fingerprints))
            if self._redone is not None and (damage := self._redone.add(iteration, row.rank, row.distances)):
                verdicts.append(_damaged(damage))
        for frame in frames:
            verdicts += self._judge(frame)
        return tuple(verdicts)

    def _waits_of(self, row: Row) -> Mapping[str, float]:
        position = self.plan.position(row.rank)
        if row.tp_wait_s <= 0 or position is None:
            return row.link_s
        stage = self.plan.replicas[position[0]].stages[position[1]]
        return {group_name(GroupKind.TP, stage.ranks): row.tp_wait_s, **row.link_s}

    def _judge(self, frame: Frame) -> tuple[Verdict, ...]:
        assert self.level is not None  # frames come from its assembly
        self.judged = max(self.judged, frame.iteration)
        found = self.level.observe(frame.iteration, frame.seconds, frame.work)
        slow_links = [v for links in self._links for v in links.judge(frame.iteration)]
        return (*self.level.suspicions(frame.iteration), *found, *slow_links)

    def _observe_standby(self, iteration: int, row: Row) -> tuple[Verdict, ...]:
        name = str(row.rank)
        if row.rank not in self.plan.standby or not self._is_mine(STANDBY) or self._probed.get(name, 0) >= iteration:
            return ()
        self._probed[name] = iteration
        if not self.probes.knows(name):
            self.probes.learn(name, row.probe_s, p=self._memory.get(name, DeviceMemory()).p)
        found = self.probes.observe(iteration, name, row.probe_s)
        for verdict in found:
            slow = verdict.kind is VerdictKind.DEVICE_SLOW
            known = self._memory.get(name, DeviceMemory())
            self._memory[name] = known.with_speed(verdict.first_iteration if slow else None, verdict.p)
        return found

    # --- results --------------------------------------------------------------------------------------------------

    @property
    def is_learned(self) -> bool:
        """Whether every group here can be judged."""
        return self.level is None or self.level.is_learned

    def members(self) -> dict[str, tuple[int, ...]]:
        """Group of peers -> ranks of the present plan."""
        groups = {group: tuple(map(int, names)) for group, names in peer_groups(self._shares).items()}
        return {**groups, JOB: tuple(sorted(self._shares))}

    def scores(self) -> dict[int, tuple[float, float, float, float]]:
        """Rank -> p, its 95 % interval, and the confidence that it is slow, of every rank that is judged here."""
        names = self.level.roster.places if self.level is not None else ()
        standby = self.plan.standby if self._is_mine(STANDBY) else ()
        return {**dict.fromkeys([*map(int, names), *standby], HEALTHY), **self._slow()}

    def _p(self, name: str) -> float:
        """Of an active device."""
        place = self.level.roster.places.get(name) if self.level is not None else None
        if self.level is None or place is None or not self.level.cusum.slow[place]:
            return 1.0
        return math.exp(-max(self.level.cusum.severity(*place)[0], 0.0))

    def _slow(self) -> dict[int, tuple[float, float, float, float]]:
        found = {int(name): score for name, score in self.level.slow().items()} if self.level is not None else {}
        for rank in self.plan.standby:
            score = self.probes.score(str(rank))
            if score is not None and score[0] < 1.0:
                found[rank] = (score[0], score[0], score[0], score[1])
        return found

    # --- restarts -------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Everything that `restore` needs, as plain values."""
        return {
            "plan": self.plan.to_dict(),
            "level": self.level.snapshot() if self.level is not None else None,
            "assembly": self._assembly.snapshot() if self._assembly is not None else None,
            "state": self._state.snapshot() if self._state is not None else None,
            "redone": self._redone.snapshot() if self._redone is not None else None,
            "links": [links.snapshot() for links in self._links],
            "steps": self._steps.snapshot() if self._steps is not None else None,
            "probes": self.probes.snapshot(),
            "memory": {name: known.as_list() for name, known in self._memory.items()},
            "judged": self.judged,
            "probed": dict(self._probed),
        }

    @classmethod
    def restored(
        cls,
        state: Mapping[str, Any],
        model: ModelSpec,
        config: PeerConfig | None = None,
        *,
        is_mine: Callable[[str], bool] = lambda group: True,
    ) -> JobLevel:
        """Go on from a snapshot, with the thresholds of `config`. Raises ValueError if it is of other groups."""
        job = cls(ParallelPlan.from_dict(state["plan"]), model, config, is_mine=is_mine)
        if state["steps"] is not None:
            job._steps = StepLevel(job.plan, model, job.config)
        parts = (
            (job.level, "level"), (job._assembly, "assembly"), (job._state, "state"), (job._redone, "redone"),
            (job._steps, "steps"),
        )  # fmt: skip
        for part, key in parts:
            if (part is None) != (state[key] is None):
                raise ValueError(f"the snapshot was taken by a detector with another share of the work ({key})")
            if part is not None:
                part.restore(state[key])
        for links, known in zip(job._links, state["links"], strict=True):
            links.restore(known)
        job.probes.restore(state["probes"])
        job._memory = {name: DeviceMemory(*known) for name, known in state["memory"].items()}
        job.judged, job._probed = state["judged"], dict(state["probed"])
        return job


def _diverged(found: Divergence) -> Verdict:
    evidence = {
        "bucket": found.bucket,
        "ranks": list(found.ranks),
        "is_majority": found.is_majority,
        "agreed_iteration": found.agreed,
        "digests": {str(rank): digest for rank, digest in found.digests.items()},
    }
    return Verdict(VerdictKind.STATE_DIVERGED, found.iteration, found.iteration, STATE, evidence=evidence)


def _damaged(found: Damage) -> Verdict:
    distances = {b: {str(rank): list(s) for rank, s in of.items()} for b, of in found.distances.items()}
    evidence = {"ranks": list(found.ranks), "distances": distances}
    return Verdict(
        VerdictKind.STATE_CORRUPTED, found.iteration, found.iteration, STATE, confidence=CONFIDENCE, evidence=evidence
    )
