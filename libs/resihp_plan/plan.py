"""`ParallelPlan`: the immutable, versioned description of who holds and runs what.

Every rank, the scheduler and the database agree on a plan by its digest, which is taken over canonical bytes.
Errors: `InvalidPlan` (a ValueError) names the rule and the values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from resihp_plan.compact import expanded


class InvalidPlan(ValueError):
    """A plan breaks a rule; the text names the rule and the values."""


class Schedule(StrEnum):
    """Generators of programs."""

    ONE_F_ONE_B = "1f1b"
    SLACK_1 = "1f1b-slack-1"
    """1F1B with one more micro-batch in flight (in the closed form at most as many more as stages follow): hides
    transfers and uneven stages (eager 1F1B, Zhuang et al. 2023, arXiv 2211.05322), at the price of its activations."""
    SLACK_2 = "1f1b-slack-2"
    """Two more."""
    ZB_H1 = "zb-h1"
    """Zero bubble, variant H1 (Qi et al. 2023): split backward; activations of 1F1B's first stage on every stage."""

    @property
    def splits_backward(self) -> bool:
        """Gradients of inputs and of weights are operations of their own."""
        return self is Schedule.ZB_H1

    @property
    def slack(self) -> int:
        return {Schedule.SLACK_1: 1, Schedule.SLACK_2: 2}.get(self, 0)

    @property
    def family(self) -> tuple[Schedule, ...]:
        """Schedules with the same operations, this one first: they differ in order and memory only."""
        alike = (s for s in Schedule if s.splits_backward == self.splits_backward and s is not self)
        return (self, *alike)

    def warm_up(self, num_stages: int, stage: int) -> int:
        """Forwards that a stage runs before its first backward."""
        behind = num_stages - stage - 1
        return behind + min(self.slack, behind)

    def in_flight(self, num_stages: int, stage: int, *, mixed: bool = False) -> int:
        """Micro-batches whose activations a stage holds at most. The late weight halves of a split backward keep up to
        as many everywhere as the first stage has. `mixed`: in a replica that exchanges units."""
        if self.splits_backward:
            return num_stages
        return self.most_open(num_stages, stage) if mixed else self.warm_up(num_stages, stage) + 1

    def most_open(self, num_stages: int, stage: int) -> int:
        """Forwards without their (input) backward at most, where units are exchanged: the slack helps every stage."""
        return num_stages - stage + self.slack


@dataclass(frozen=True)
class StagePlan:
    """A contiguous range of layers of one replica and the tensor-parallel group that holds it.

    The first stage of a replica also holds the embedding, the last one final norm and head.
    """

    layer_start: int
    layer_stop: int
    ranks: tuple[int, ...]
    weights: tuple[int, ...]
    """One non-negative integer per rank: units (head groups, MLP blocks, vocabulary blocks) are shared out in
    proportion (`layout.shares`). Equal weights mean the usual even split."""


@dataclass(frozen=True)
class ReplicaPlan:
    """A full copy of the model."""

    stages: tuple[StagePlan, ...]
    num_micro_batches: int
    """How many of the global batch's micro-batches enter this replica; 0 is allowed for a replica that idles."""


@dataclass(frozen=True)
class Migration:
    """One (stage, micro-batch) unit of `replica` is executed by the same stage index of `executor`."""

    replica: int
    stage: int
    micro_batch: int
    executor: int


@dataclass(frozen=True)
class ParallelPlan:
    """Replicas -> stages -> (layers, ranks, weights); immutable. Rank numbers are plan ranks."""

    epoch: int
    replicas: tuple[ReplicaPlan, ...]
    migrations: tuple[Migration, ...] = ()
    standby: tuple[int, ...] = ()
    """Healthy ranks without work: they take part in votes and are ready for the next plan."""
    schedule: Schedule = Schedule.ONE_F_ONE_B
    speeds: tuple[tuple[int, int], ...] = ()
    """(rank, thousandths of the cost model's device), ascending, as known when the plan was made; missing ranks have
    1,000. Every rank levels micro-batches and orders exchanged units by them; no numerical result depends on them."""

    @cached_property
    def speed_of(self) -> Mapping[int, float]:
        """Rank -> speed, for those that are not at 1."""
        return {rank: thousandths / 1000 for rank, thousandths in self.speeds}

    @cached_property
    def active(self) -> tuple[int, ...]:
        """Ranks that hold a stage, ascending."""
        return tuple(sorted(r for rep in self.replicas for st in rep.stages for r in st.ranks))

    @cached_property
    def world(self) -> tuple[int, ...]:
        """Active and standby ranks, ascending: the members of the epoch's world group; the index is the torch rank."""
        return tuple(sorted((*self.active, *self.standby)))

    @property
    def num_micro_batches(self) -> int:
        return sum(rep.num_micro_batches for rep in self.replicas)

    def position(self, rank: int) -> tuple[int, int, int] | None:
        """(replica, stage, index in the TP group) of an active rank; None for others."""
        return self._positions.get(rank)

    @cached_property
    def _positions(self) -> Mapping[int, tuple[int, int, int]]:
        return {
            rank: (a, s, t)
            for a, rep in enumerate(self.replicas)
            for s, st in enumerate(rep.stages)
            for t, rank in enumerate(st.ranks)
        }

    def executor(self, replica: int, stage: int, micro_batch: int) -> int:
        """The replica whose devices run this unit: `replica` itself unless the unit is migrated."""
        return self._executors.get((replica, stage, micro_batch), replica) if self.migrations else replica

    def num_units(self, replica: int, stage: int) -> int:
        """Micro-batches that this stage executes: its own, without those given away, with those taken over."""
        given = sum((m.replica, m.stage) == (replica, stage) for m in self.migrations)
        taken = sum((m.executor, m.stage) == (replica, stage) for m in self.migrations)
        return self.replicas[replica].num_micro_batches - given + taken

    @cached_property
    def mixed(self) -> frozenset[int]:
        """Replicas that execute units of each other."""
        return frozenset(r for m in self.migrations for r in (m.replica, m.executor))

    @cached_property
    def _executors(self) -> Mapping[tuple[int, int, int], int]:
        return {(m.replica, m.stage, m.micro_batch): m.executor for m in self.migrations}

    def with_epoch(self, epoch: int) -> ParallelPlan:
        return replace(self, epoch=epoch)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; `from_dict` is its inverse."""
        return {
            "epoch": self.epoch,
            "schedule": str(self.schedule),
            "standby": list(self.standby),
            **({"speeds": [list(s) for s in self.speeds]} if self.speeds else {}),
            "migrations": [[m.replica, m.stage, m.micro_batch, m.executor] for m in self.migrations],
            "replicas": [
                {
                    "num_micro_batches": rep.num_micro_batches,
                    "stages": [
                        {
                            "layers": [st.layer_start, st.layer_stop],
                            "ranks": list(st.ranks),
                            "weights": list(st.weights),
                        }
                        for st in rep.stages
                    ],
                }
                for rep in self.replicas
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ParallelPlan:
        """Reads the compact form (`compact.compact`), too. Raises `InvalidPlan` if a field is missing or of the wrong
        type."""
        try:
            data = expanded(data)
            return cls(
                epoch=_int(data["epoch"]),
                schedule=Schedule(data.get("schedule", Schedule.ONE_F_ONE_B)),
                standby=tuple(_int(r) for r in data.get("standby", ())),
                migrations=tuple(Migration(*(_int(v) for v in m)) for m in data.get("migrations", ())),
                speeds=tuple((_int(r), _int(s)) for r, s in data.get("speeds", ())),
                replicas=tuple(
                    ReplicaPlan(
                        num_micro_batches=_int(rep["num_micro_batches"]),
                        stages=tuple(
                            StagePlan(
                                _int(st["layers"][0]),
                                _int(st["layers"][1]),
                                tuple(_int(r) for r in st["ranks"]),
                                tuple(_int(w) for w in st.get("weights") or [1] * len(st["ranks"])),
                            )
                            for st in rep["stages"]
                        ),
                    )
                    for rep in data["replicas"]
                ),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise InvalidPlan(f"not a plan: {type(error).__name__}: {error}") from error

    @cached_property
    def digest(self) -> str:
        """SHA-256 over canonical JSON bytes (sorted keys, no spaces), 64 hex digits."""
        raw = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":")).encode()
        return hashlib.sha256(raw).hexdigest()


def known_speeds(speeds: Mapping[int, float], ranks: Collection[int]) -> tuple[tuple[int, int], ...]:
    """`ParallelPlan.speeds` of these ranks."""
    known = ((rank, max(1, round(1000 * p))) for rank, p in sorted(speeds.items()) if rank in ranks)
    return tuple((rank, thousandths) for rank, thousandths in known if thousandths != 1000)


def _int(value: Any) -> int:
    """No rounding and no text: a plan file with 4.7 layers is a mistake."""
    if type(value) is not int:
        raise TypeError(f"expected an integer, got {value!r}")
    return value
