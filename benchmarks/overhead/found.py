"""Ratios of blocks to their neighbours, the ledger, and the table of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, median

from benchmarks.overhead.ingredients import BARE, WHOLE, Part, Variant
from benchmarks.overhead.worker import BLOCK, LEAD, place
from benchmarks.report import milliseconds, table

BOUND = 0.005
DRAWS = 4000

Row = tuple[int, float, float, float, dict[str, float]]
"""(iteration, wall seconds, processor seconds of the process, of its training thread, the ledger's seconds)."""


@dataclass(frozen=True)
class Found:
    """Median of the ratios of blocks to their neighbours with a 95 % interval (bootstrap over pairs)."""

    overhead: float
    low: float
    high: float
    with_s: float
    bare_s: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]], rng: Random) -> Found:
        """`pairs`: seconds of an iteration (with, bare). Raises ValueError without pairs."""
        ratios = [a / b - 1.0 for a, b in pairs]
        if not ratios:
            raise ValueError("no pairs")
        drawn = sorted(median(rng.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
        low, high = drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS)]
        return cls(median(ratios), low, high, median(a for a, _ in pairs), median(b for _, b in pairs))


@dataclass(frozen=True)
class Run:
    """The rows of all ranks of one job, and what took turns in it."""

    ranks: Sequence[Sequence[Row]]
    variants: Sequence[Variant]

    def counted(self, block: int) -> list[int]:
        """Indices of a block's counted iterations, if it is whole."""
        inside = [i for i, row in enumerate(self.ranks[0]) if place(row[0])[0] == block]
        return inside[LEAD:] if len(inside) == BLOCK else []

    def pairs(self, variant: Variant, column: int) -> list[tuple[float, float]]:
        """Means of a variant's blocks, and of the bare ones before and behind each, so that a drift of the machine
        cancels. `column` of a row: 1 (wall: rank 0's) or 2 (processor: all ranks')."""
        found = []
        for block in range(2, place(self.ranks[0][-1][0])[0]):
            around = [block - 1, block, block + 1]
            kinds = [self.variants[b % len(self.variants)] for b in around]
            before, inside, behind = (self.counted(b) for b in around)
            if kinds == [BARE, variant, BARE] and before and inside and behind:
                found.append((self._mean(inside, column), self._mean(before + behind, column)))
        return found

    def _mean(self, rows: Sequence[int], column: int) -> float:
        if column == 1:
            return fmean(self.ranks[0][i][1] for i in rows)
        return fmean(sum(rank[i][2] for rank in self.ranks) for i in rows)

    def ledger(self) -> dict[str, float]:
        """Seconds per iteration of all ranks, in blocks with everything on; `threads`: of other threads than the
        training thread, beyond what they take in bare blocks."""
        whole = [r for rank in self.ranks for r in self._of(rank, WHOLE)]
        bare = [r for rank in self.ranks for r in self._of(rank, BARE)]
        found = {str(p): len(self.ranks) * fmean(r[4].get(p, 0.0) for r in whole) for p in Part}
        threads = fmean(r[2] - r[3] for r in whole) - fmean(r[2] - r[3] for r in bare)
        return {**found, "threads": len(self.ranks) * threads}

    def _of(self, rank: Sequence[Row], variant: Variant) -> list[Row]:
        blocks = range(1, place(rank[-1][0])[0] + 1)
        chosen = [b for b in blocks if self.variants[b % len(self.variants)] == variant]
        return [rank[i] for b in chosen for i in self.counted(b)]


def render(run: Run) -> str:
    """Markdown."""
    rng, rows = Random(0), []
    for variant in run.variants:
        if variant != BARE:
            for name, column in (("wall", 1), ("processor, all ranks", 2)):
                f = Found.of(run.pairs(variant, column), rng)
                interval = f"{f.low:+.2%} to {f.high:+.2%}"
                ms = milliseconds(f.with_s), milliseconds(f.bare_s)
                rows.append((variant.name, name, *ms, f"{f.overhead:+.2%}", interval))
    header = ("on", "time", "with, ms", "bare, ms", "overhead", "95 % interval")
    return "\n\n".join([verdict(run, rng), table(header, rows), render_ledger(run)])


def verdict(run: Run, rng: Random) -> str:
    """One sentence."""
    cpu = Found.of(run.pairs(WHOLE, 2), rng)
    said = "below" if cpu.high < BOUND else "NOT below" if cpu.low > BOUND else "too uncertain to compare with"
    total = sum(run.ledger().values()) / cpu.bare_s
    return (
        f"All on against all off: processor time {cpu.overhead:+.2%}, {said} the bound of {BOUND:.1%} by the blocks; "
        f"{total:.2%} by the ledger."
    )


def render_ledger(run: Run) -> str:
    """What each ingredient takes by the clocks around it, which noise of the machine does not hide."""
    bare_s = median(b for _, b in run.pairs(WHOLE, 2))
    rows = [
        (name, f"{1e3 * seconds:.3f}", f"{seconds / bare_s:+.3%}")
        for name, seconds in (*run.ledger().items(), ("sum", sum(run.ledger().values())))
    ]
    return table(("ledger, all on", "processor ms per iteration, all ranks", "of a bare iteration"), rows)
