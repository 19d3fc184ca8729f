"""Ratios of blocks to their neighbours, the ledger, and the table of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random
from statistics import fmean, median

from benchmarks.overhead.ingredients import ENTRIES, Part, Variant
from benchmarks.overhead.worker import BLOCK, EVERY, LEAD, THREADS, is_audited, place, variant_of
from benchmarks.report import milliseconds, table
from resihp_messages.job import SnapshotConfig, TelemetryConfig

DEFAULT = SnapshotConfig()
"""Of a job that says nothing about copies."""
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
class Cost:
    """Seconds, of all ranks or of one, beyond bare iterations."""

    steady: float
    """In an iteration without a round of snapshots and fingerprints."""
    round: float
    """Of a round, spread over the iterations that it touches."""

    def each(self, apart: int) -> float:
        """Per iteration, with a round in so many."""
        return self.steady + self.round / apart


@dataclass(frozen=True)
class Run:
    """The rows of all ranks of one job."""

    ranks: Sequence[Sequence[Row]]

    @property
    def _num_blocks(self) -> int:
        return place(self.ranks[0][-1][0])[0] + 1

    @property
    def apart(self) -> int:
        """Iterations between rounds by default: a multiple of `every`, and no fewer seconds than `apart_s`."""
        step_s = median(b for _, b in self.pairs(1, rounds=False))
        return DEFAULT.every * max(1, ceil(DEFAULT.apart_s / step_s / DEFAULT.every))

    def each(self, name: str, cost: Cost) -> float:
        """Seconds of an ingredient per iteration, with rounds as often as by default."""
        return cost.each(TelemetryConfig().fingerprint_every if name == Part.FINGERPRINTS else self.apart)

    def counted(self, block: int) -> list[int]:
        """Indices of a block's counted iterations, if it is whole."""
        inside = [i for i, row in enumerate(self.ranks[0]) if place(row[0])[0] == block]
        return inside[LEAD:] if len(inside) == BLOCK else []

    def has_round(self, block: int) -> bool:
        return any(self.ranks[0][i][0] % EVERY == 0 for i in self.counted(block))

    def pairs(self, column: int, *, rounds: bool) -> list[tuple[float, float]]:
        """Means of a block with everything on, and of the bare ones around it, so that a drift of the machine cancels.
        `column` of a row: 1 (wall: rank 0's) or 2 (processor: all ranks'). `rounds`: those that have one, or
        those that have none."""
        found = []
        for block in range(2, self._num_blocks - 1, 2):
            before, inside, behind = (self.counted(b) for b in (block - 1, block, block + 1))
            if before and inside and behind and self.has_round(block) == rounds and not is_audited(block):
                found.append((self._mean(inside, column), self._mean(before + behind, column)))
        return found

    def _mean(self, rows: Sequence[int], column: int) -> float:
        if column == 1:
            return fmean(self.ranks[0][i][1] for i in rows)
        return fmean(sum(rank[i][2] for rank in self.ranks) for i in rows)

    def by_blocks(self, column: int) -> Cost:
        """From medians of pairs."""
        steady = median(a - b for a, b in self.pairs(column, rounds=False))
        extra = [a - b - steady for a, b in self.pairs(column, rounds=True)]
        return Cost(steady, (BLOCK - LEAD) * median(extra) if extra else 0.0)

    def ledger(self) -> dict[str, Cost]:
        """Of all ranks, less what the ledger itself takes. `transfers`: of gloo's threads in a round, beyond what they
        take in the other blocks."""
        clocks_s = self.clocks_s()
        watched = [b for b in range(2, self._num_blocks, 2) if self.counted(b) and is_audited(b)]
        steady = [b for b in watched if not self.has_round(b)]
        rounds = [b for b in watched if self.has_round(b)]

        def of(seconds: Callable[[Row], float], average: Callable[[Iterable[float]], float]) -> tuple[float, float]:
            """Per block without a round, and what one with a round takes beyond it."""
            each = average(self._sum(b, seconds) for b in steady)
            return each, average(self._sum(b, seconds) for b in rounds) - each if rounds else 0.0

        def own(row: Row, name: str) -> float:
            return row[4].get(name, 0.0) - clocks_s * row[4].get(name + ENTRIES, 0.0)

        found = {}
        for name in (*(str(part) for part in Part if part is not Part.CLOCKS), THREADS):
            each, extra = of(lambda row, name=name: own(row, name), fmean)  # type: ignore[misc]
            found[name] = Cost(each / (BLOCK - LEAD), extra)
        _, extra = of(lambda row: row[2] - row[3] - row[4].get(THREADS, 0.0), median)
        return {**found, "transfers": Cost(0.0, extra)}

    def clocks_s(self) -> float:
        """What an entry of the ledger takes by itself between units, beyond what was learnt in a loop."""
        rows = [row[4] for rank in self.ranks for row in rank if variant_of(place(row[0])[0]) is Variant.BARE]
        entries = sum(row.get(Part.CLOCKS + ENTRIES, 0.0) for row in rows)
        return sum(row.get(Part.CLOCKS, 0.0) for row in rows) / entries if entries else 0.0

    def _sum(self, block: int, seconds: Callable[[Row], float]) -> float:
        return sum(seconds(rank[i]) for rank in self.ranks for i in self.counted(block))


def render(run: Run) -> str:
    """Markdown."""
    rng, rows = Random(0), []
    for name, column in (("wall", 1), ("processor, all ranks", 2)):
        f, cost = Found.of(run.pairs(column, rounds=False), rng), run.by_blocks(column)
        ms = milliseconds(f.with_s), milliseconds(f.bare_s)
        interval = f"{f.low:+.2%} to {f.high:+.2%}"
        whole = f"{cost.each(run.apart) / f.bare_s:+.2%}"
        rows.append((name, *ms, f"{f.overhead:+.2%}", interval, f"{1e3 * cost.round:.1f}", whole))
    header = ("time", "with, ms", "bare, ms", "no round", "95 % interval", "a round, ms", f"a round in {run.apart}")
    return "\n\n".join([verdict(run, rng), table(header, rows), render_ledger(run)])


def verdict(run: Run, rng: Random) -> str:
    """One sentence."""
    pairs = run.pairs(2, rounds=False)
    cpu = Found.of(pairs, rng)
    total = sum(run.each(name, c) for name, c in run.ledger().items()) / cpu.bare_s
    said = "below" if total < BOUND else "NOT below"
    return (
        f"Processor time of all ranks: {total:.2%} of a bare iteration by the ledger, {said} the bound of {BOUND:.1%}. "
        f"By blocks, of iterations without a round, {cpu.overhead:+.2%} ({cpu.low:+.2%} to {cpu.high:+.2%}, "
        f"{len(pairs)} pairs)."
    )


def render_ledger(run: Run) -> str:
    """What each ingredient takes by the clocks around it, which noise of the machine does not hide."""
    bare_s = median(b for _, b in run.pairs(2, rounds=False))
    ledger = run.ledger()
    total = Cost(sum(c.steady for c in ledger.values()), sum(c.round for c in ledger.values()))
    each = {name: run.each(name, c) for name, c in ledger.items()}
    rows = [
        (name, f"{1e3 * c.steady:.3f}", f"{1e3 * c.round:.2f}", f"{s / bare_s:+.3%}")
        for name, c, s in (*((n, c, each[n]) for n, c in ledger.items()), ("sum", total, sum(each.values())))
    ]
    header = (
        "ledger, processor ms of all ranks",
        "an iteration",
        "a round",
        f"of a bare iteration, a round in {run.apart}",
    )
    said = (
        f"An entry of the ledger takes {1e6 * run.clocks_s():.1f} us by itself between units; so many are taken off "
        f"again. By default a round comes every {DEFAULT.every} iterations, but not before {DEFAULT.apart_s:.0f} s."
    )
    return f"{table(header, rows)}\n\n{said}"
