"""Two replicas differ after a flipped bit: which comparison with redone iterations tells whose bit it was?

    python -m benchmarks.diverged_pair [--trials 800]

A simulation in one process: two data-parallel replicas of a small classifier sum their gradients and apply AdamW
(float32). Fingerprints agree at an iteration and differ `PERIOD` iterations later; these are then redone, and compared
there and `LATER` iterations on, since training goes on until all go back (docs/adr/017-a-diverged-pair.md).
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.report import machine, table, write

PERIOD, LR, DECAY, BETAS, ROWS, WORDS = 50, 1e-3, 0.01, (0.9, 0.999), 32, 24
LATER = (10, 50)
SHAPES = ((WORDS, 16), (64, 32), (32,), (32, WORDS), (WORDS,))
SIZES = [torch.Size(shape).numel() for shape in SHAPES]
PARTS = ("parameter", "first moment", "second moment")
State = list[Tensor]
"""Of one replica: parameters and both moments, flat."""


class Job:
    """Batches are a function of (replica, iteration), as in the engine."""

    def __init__(self, iterations: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self._x = torch.randint(0, WORDS, (iterations, 2, ROWS, 4), generator=draw)
        self._y = (7 * self._x.sum(-1) + self._x[..., 0]) % WORDS
        start = 0.1 * torch.randn(sum(SIZES), generator=draw)
        self.start: list[State] = [[start.clone(), *(torch.zeros_like(start) for _ in BETAS)] for _ in range(2)]

    def _gradient(self, parameters: Tensor, iteration: int, replica: int) -> Tensor:
        parts = zip(torch.split(parameters, SIZES), SHAPES, strict=True)
        leaves = [part.view(shape).detach().requires_grad_() for part, shape in parts]
        embedding, first, bias, second, last = leaves
        hidden = torch.tanh(embedding[self._x[iteration, replica]].flatten(1) @ first + bias)
        loss = functional.cross_entropy(hidden @ second + last, self._y[iteration, replica], reduction="sum")
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss / (2 * ROWS), leaves)])

    def step(self, states: Sequence[State], iteration: int) -> None:
        """All replicas apply the same sum of gradients, in place."""
        gradient = sum((self._gradient(s[0], iteration, r) for r, s in enumerate(states)), torch.zeros(()))
        for parameters, mean, square in states:
            mean.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
            square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            corrected = [m / (1 - beta ** (iteration + 1)) for m, beta in zip((mean, square), BETAS, strict=True)]
            parameters.mul_(1 - LR * DECAY).addcdiv_(corrected[0], corrected[1].sqrt().add_(1e-8), value=-LR)


@dataclass(frozen=True)
class Flip:
    """One bit of one element of one replica's state, before an iteration uses it."""

    replica: int
    iteration: int
    part: int
    element: int
    bit: int

    @property
    def kind(self) -> str:
        where = ("mantissa, lower part", "mantissa, upper part", "sign or exponent")[
            (self.bit >= 12) + (self.bit >= 23)
        ]
        return f"{PARTS[self.part]}, {where}"

    def strike(self, states: Sequence[State]) -> None:
        mask = 1 << self.bit if self.bit < 31 else -(1 << 31)
        states[self.replica][self.part].view(torch.int32)[self.element] ^= mask


def by_digest(states: Sequence[State], redone: State) -> int | None:
    """The replica whose bits alone differ from the redone ones."""
    differs = [any(not torch.equal(p, q) for p, q in zip(s, redone, strict=True)) for s in states]
    return differs.index(True) if sum(differs) == 1 else None


def by_distance(states: Sequence[State], redone: State) -> int | None:
    """The replica that is farther from the redone state, in the part in which the two differ most."""
    found: tuple[float, int | None] = 0.0, None
    for part, redone_part in enumerate(redone):
        far = [float((s[part] - redone_part).abs().double().sum()) for s in states]
        if far[0] != far[1]:
            found = max(found, (abs(far[0] - far[1]) / max(far), int(far[1] > far[0])), key=lambda f: f[0])
    return found[1]


def main() -> None:
    """Write benchmarks/results/diverged_pair.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=800)
    trials, facts = parser.parse_args().trials, machine()
    torch.set_num_threads(1)
    draw, job, periods = random.Random(1), Job(6 * PERIOD), []
    states, healthy = job.start, []
    for iteration in range(6 * PERIOD):
        healthy.append([t.clone() for t in states[0]])
        if iteration % PERIOD == 0:
            periods.append([[t.clone() for t in s] for s in states])
        job.step(states, iteration)
    healthy.append([t.clone() for t in states[0]])
    counts: Counter[tuple[str, str]] = Counter()
    for _ in range(trials):
        period = draw.randrange(1, 5)
        part, bit = draw.choice((0, 0, 0, 1, 2)), draw.randrange(32)
        at = period * PERIOD + draw.randrange(PERIOD)
        flip = Flip(draw.randrange(2), at, part, draw.randrange(sum(SIZES)), bit)
        states = [[t.clone() for t in s] for s in periods[period]]
        end = (period + 1) * PERIOD
        for iteration in range(period * PERIOD, end + max(LATER)):
            if iteration == flip.iteration:
                flip.strike(states)
            job.step(states, iteration)
            seen = iteration + 1 - end
            if seen == 0 or seen in LATER:
                for what in _outcomes(states, healthy[end + seen], flip.replica, seen):
                    counts[flip.kind, what] += 1
    columns = ["trials", "not finite", "no difference left", "visible"]
    rules = ("digest", "distance", *(f"distance, {n} later" for n in LATER))
    columns += [f"{rule}: {verdict}" for rule in rules for verdict in ("right", "wrong")]
    kinds = sorted({kind for kind, _ in counts})
    rows = [[kind, *(str(counts[kind, c]) for c in columns)] for kind in kinds]
    rows.append(["all", *(str(sum(counts[kind, c] for kind in kinds)) for c in columns)])
    body = f"**Simulated.** A bit flipped before one of {PERIOD} iterations; then they are redone. "
    body += "Where fewer count later on, the difference is gone by then.\n\n"
    body += table(("flipped", *columns), rows)
    facts = {**facts, "job": f"two replicas, {sum(SIZES)} parameters, AdamW, float32"}
    command = f"python -m benchmarks.diverged_pair --trials {trials}"
    print(write("diverged_pair", "Two replicas that differ: who was hit?", command, facts, body).read_text())


def _outcomes(states: Sequence[State], redone: State, victim: int, later: int) -> list[str]:
    """Columns of the table that this trial counts for, `later` iterations after the fingerprints that differ."""
    if not all(bool(t.isfinite().all()) for s in states for t in s):
        return [] if later else ["trials", "not finite"]  # the vote refuses such an iteration anyway
    if all(torch.equal(p, q) for p, q in zip(*states, strict=True)):
        return [] if later else ["trials", "no difference left"]
    found, rules = [], [(f"distance, {later} later", by_distance(states, redone))]
    if not later:
        found = ["trials", "visible"]
        rules = [("digest", by_digest(states, redone)), ("distance", by_distance(states, redone))]
    for name, named in rules:
        if named is not None:
            found.append(f"{name}: {'right' if named == victim else 'wrong'}")
    return found


if __name__ == "__main__":
    main()
