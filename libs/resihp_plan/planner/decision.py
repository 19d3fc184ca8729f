"""What the planner answers: a decision with its reasons, or a typed refusal."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from resihp_plan.plan import ParallelPlan


class InfeasibleKind(StrEnum):
    """Why no plan exists."""

    NO_DEVICES = "no_devices"
    """Nobody, or not enough devices, are left."""
    MEMORY = "memory"
    """No arrangement fits into the devices' memory."""
    NO_STATE_HOLDER = "no_state_holder"
    """A part of the model's state is held by nobody alive: it takes a snapshot or a checkpoint to go on."""
    DEGREE = "degree"
    """Asked-for degrees do not fit the model."""


class Infeasible(Exception):
    """No valid plan exists. `kind` for programs, `detail` with the numbers for people."""

    def __init__(self, kind: InfeasibleKind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True)
class Alternative:
    """A candidate that was not taken."""

    name: str
    predicted_step_s: float
    predicted_tokens_per_s: float
    bytes_moved: int | None
    """None if it was too slow for its transfers to be worked out."""
    difference: str
    """`describe_change` from the old plan."""
    why_lost: str


@dataclass(frozen=True)
class Decision:
    """The plan to take, with everything that history keeps about the choice."""

    plan: ParallelPlan
    name: str
    """Of the chosen candidate."""
    predicted_step_s: float
    predicted_tokens_per_s: float
    bound_tokens_per_s: float
    """Predicted throughput of the old plan with all its devices, times the fraction of them that is left."""
    alternatives: tuple[Alternative, ...]
    """The best of every other kind of candidate, fastest first."""
    reason: str
    difference: str
    """`describe_change` from the old plan."""
    bytes_moved: int
    """Between ranks: parameters and both moments."""
    num_candidates: int
    """How many were compared with `simulate`."""
    planning_s: float
    change_s: float | None = None
    """Predicted seconds without training during the change; 0 for staying, None if it was not predicted."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form, for the record."""
        return {**asdict(self), "plan": self.plan.to_dict(), "alternatives": [asdict(a) for a in self.alternatives]}
