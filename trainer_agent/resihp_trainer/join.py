"""The join: what the members of a new epoch tell each other, and what all of them conclude from it.

`conclude` is a pure function of the headers, which are the same on every rank after the all-gather; so no rank decides
alone. docs/protocol.md, steps 3 to 5.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resihp_plan import Layout, ParallelPlan, Transfers, layout, transfers
from resihp_plan.model import ModelSpec

MAX_HELD = 2
"""Layouts that a rank holds at most: the old and the new one during a change."""
_LAYOUT = "q32s"
_STRUCT = struct.Struct(f"<32sq?q{_LAYOUT}{_LAYOUT}qqqqqqdd")
HEADER_BYTES = _STRUCT.size
_NO_LAYOUT = (0, b"")


class JoinRefused(Exception):
    """The members of the epoch cannot go on together; the text says why. Every member concludes the same."""


class StateLost(JoinRefused):
    """The holders that are left do not have all of the newest state."""


@dataclass(frozen=True)
class Synchronised:
    """An iteration whose gradient sums are complete on a rank although its vote is not over there."""

    iteration: int
    epoch: int
    """In whose layout the gradients are."""


@dataclass(frozen=True)
class Applied:
    """The last step that a rank applied: enough for another one to apply the same to the gradients that it kept."""

    iteration: int
    epoch: int
    """In which it was voted."""
    tokens: int
    samples: int
    """Documents of all iterations so far, each counted exactly once by a vote."""
    norm: float
    loss: float


@dataclass(frozen=True)
class Header:
    """One rank's state. `held`: (layout epoch, plan digest) pairs of complete shards of iteration `committed`."""

    plan_digest: str
    committed: int
    is_original: bool
    """It was started with the job, not as a replacement: it may create the initial state."""
    held: tuple[tuple[int, str], ...] = ()
    kept: Synchronised | None = None
    applied: Applied | None = None

    def pack(self) -> bytes:
        """`HEADER_BYTES` bytes."""
        if len(self.held) > MAX_HELD:
            raise ValueError(f"a rank holds at most {MAX_HELD} layouts, got {self.held}")
        layouts = [(epoch, bytes.fromhex(digest)) for epoch, digest in self.held]
        layouts += [_NO_LAYOUT] * (MAX_HELD - len(layouts))
        kept = self.kept or Synchronised(0, 0)
        applied = self.applied or Applied(0, 0, 0, 0, 0.0, 0.0)
        return _STRUCT.pack(
            bytes.fromhex(self.plan_digest),
            self.committed,
            self.is_original,
            len(self.held),
            *(field for pair in layouts for field in pair),
            kept.iteration,
            kept.epoch,
            applied.iteration,
            applied.epoch,
            applied.tokens,
            applied.samples,
            applied.norm,
            applied.loss,
        )

    @classmethod
    def unpack(cls, raw: bytes) -> Header:
        """Inverse of `pack`."""
        digest, committed, original, count, e1, d1, e2, d2, *rest = _STRUCT.unpack(raw)
        kept_iteration, kept_epoch, iteration, epoch, tokens, samples, norm, loss = rest
        return cls(
            digest.hex(),
            committed,
            original,
            ((e1, d1.hex()), (e2, d2.hex()))[:count],
            Synchronised(kept_iteration, kept_epoch) if kept_iteration else None,
            Applied(iteration, epoch, tokens, samples, norm, loss) if iteration else None,
        )


@dataclass(frozen=True)
class Conclusion:
    """`committed`: where all continue. Ranks in `settle` first apply their kept gradients with `applied`. `base` is the
    layout that state comes from, None before the first iteration: then everybody creates its initial shards.
    `stale`: ranks whose state is too old to be of use; they count as newcomers."""

    committed: int
    settle: frozenset[int]
    applied: Applied | None
    base: Layout | None
    moves: Transfers | None
    stale: frozenset[int]


def conclude(
    headers: Mapping[int, Header],
    plan: ParallelPlan,
    target: Layout,
    model: ModelSpec,
    known: Mapping[int, ParallelPlan],
    node_of: Mapping[int, str] | None = None,
) -> Conclusion:
    """What the headers (plan rank -> header) mean for the epoch of `plan`, whose layout is `target`.

    `known`: plans by epoch that a holding may refer to. The base is, among the layouts whose live holders together have
    every slice, the one with the most holders, then with the least data to move. Raises `JoinRefused` if digests
    differ, `StateLost` if nobody holds a part.
    """
    _same_plan(headers, plan)
    holders = {rank: h for rank, h in headers.items() if h.held}
    if not holders:
        if not all(h.is_original and h.committed == 0 for h in headers.values()):
            raise StateLost("state lost: no member of the epoch holds any")
        return Conclusion(0, frozenset(), None, None, None, frozenset())
    newest = max(h.committed for h in holders.values())
    applied = next((h.applied for h in holders.values() if h.committed == newest and h.applied), None)
    settle = frozenset(rank for rank, h in holders.items() if _can_settle(h, newest, applied))
    held = {rank: _held_after(h, newest, rank in settle) for rank, h in holders.items()}
    base, moves = _choose_base(held, target, model, known, node_of)
    stale = frozenset(rank for rank, layouts in held.items() if not layouts)
    return Conclusion(newest, settle, applied, base, moves, stale)


def _same_plan(headers: Mapping[int, Header], plan: ParallelPlan) -> None:
    others = sorted(rank for rank, h in headers.items() if h.plan_digest != plan.digest)
    if others:
        raise JoinRefused(f"ranks {others} have another plan of epoch {plan.epoch} than {plan.digest[:16]}")


def _can_settle(header: Header, newest: int, applied: Applied | None) -> bool:
    """It missed the outcome of the vote of `newest`, but has the very gradients that were voted on."""
    kept = header.kept
    return (
        header.committed == newest - 1
        and kept is not None
        and applied is not None
        and (kept.iteration, kept.epoch) == (newest, applied.epoch)
        and any(epoch == kept.epoch for epoch, _ in header.held)
    )


def _held_after(header: Header, newest: int, settles: bool) -> tuple[tuple[int, str], ...]:
    if header.committed == newest:
        return header.held
    if settles:
        assert header.kept is not None
        return tuple(pair for pair in header.held if pair[0] == header.kept.epoch)
    return ()


def _choose_base(
    held: Mapping[int, Sequence[tuple[int, str]]],
    target: Layout,
    model: ModelSpec,
    known: Mapping[int, ParallelPlan],
    node_of: Mapping[int, str] | None,
) -> tuple[Layout, Transfers]:
    best: tuple[tuple[int, int], Layout, Transfers] | None = None
    missing: tuple[tuple[str, int, int], ...] = ()
    for epoch, digest in sorted({pair for pairs in held.values() for pair in pairs}, reverse=True):
        old = known.get(epoch)
        if old is None or old.digest != digest:
            raise JoinRefused(f"state is held in the layout of epoch {epoch} ({digest[:16]}), whose plan is not known")
        base = layout(old, model)
        alive = {rank for rank, pairs in held.items() if (epoch, digest) in pairs}
        moves = transfers(base, target, alive=alive, node_of=node_of)
        missing = missing or moves.missing
        order = (-len(alive), moves.num_elements(model))
        if not moves.missing and (best is None or order < best[0]):
            best = (order, base, moves)
    if best is None:
        names = ", ".join(f"{name}[{a}:{b}]" for name, a, b in missing[:3])
        raise StateLost(f"state lost: no live holder of {len(missing)} slices ({names}, ...)")
    return best[1], best[2]
