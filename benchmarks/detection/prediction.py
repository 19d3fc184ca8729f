"""How well is healthy time predicted? Mean absolute error, beside that of the law that made the times."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.detection.fleet import FIXED_S, PER_SQUARE_S, PER_TOKEN_S, Fleet, Shape
from resihp_detect import fit_healthy_time
from resihp_detect.work import shares
from resihp_plan import ModelSpec, ParallelPlan

Floats = npt.NDArray[np.float64]
LEARNED, JUDGED = 20, 100
RECORDED = Path(__file__).parents[2] / "tests" / "recorded" / "virtual_quiet.jsonl"


def generated(pool: Floats, rng: np.random.Generator) -> tuple[float, float]:
    """(error of the model learned from 20 iterations, error of the true law) per device and iteration, in generated
    fleets without faults."""
    fleet = Fleet(Shape(), 2, pool, rng)
    seen = [fleet.iteration(i, []) for i in range(1, LEARNED + JUDGED + 1)]
    seconds = np.stack([s.sum(-1) for s, _ in seen])
    work = np.stack([w for _, w in seen])
    law = 3.0 * work @ np.array([FIXED_S, PER_TOKEN_S, PER_SQUARE_S])
    ours, floor = [], []
    for g in range(fleet.num_groups):
        fit = fit_healthy_time(work[:LEARNED, g].reshape(-1, 3), seconds[:LEARNED, g].ravel())
        ours.append(_error(seconds[LEARNED:, g], fit.predict(work[LEARNED:, g])))
        scale = np.median(seconds[:LEARNED, g] / law[:LEARNED, g])  # the stage's own factor
        floor.append(_error(seconds[LEARNED:, g], scale * law[LEARNED:, g]))
    return float(np.mean(ours)), float(np.mean(floor))


def recorded(path: Path = RECORDED) -> tuple[float, int]:
    """(error, device-iterations) of the real trainer on the virtual clock, from a recorded stream of reports."""
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    known = shares(ParallelPlan.from_dict(rows[0]["plan"]), ModelSpec(**rows[0]["model"]))
    work: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    seconds: dict[str, list[float]] = defaultdict(list)
    for row in rows[3:]:  # without the two first iterations
        for i, rank in enumerate(row["ranks"]):
            share = known[rank]
            units = len(row["unit_tokens"][i])
            work[share.group].append(share.work(units, row["tokens"][i], row["sum_sq_len"][i]))
            seconds[share.group].append(row["forward_s"][i] + row["backward_s"][i])
    errors = []
    for group, done in work.items():
        w, s = np.array(done), np.array(seconds[group])
        learned = LEARNED * sum(share.group == group for share in known.values())
        errors.append(np.abs(s[learned:] / fit_healthy_time(w[:learned], s[:learned]).predict(w[learned:]) - 1.0))
    every = np.concatenate(errors)
    return float(np.mean(every)), len(every)


def _error(observed: Floats, predicted: Floats) -> float:
    return float(np.mean(np.abs(observed / predicted - 1.0)))


def text(pools: dict[str, Floats], rng: np.random.Generator) -> str:
    """A paragraph of the result."""
    found = {name: generated(pool, rng) for name, pool in pools.items()}
    by_work = "; ".join(
        f"{name} {100 * ours:.2f} % (true law {100 * law:.2f} %)" for name, (ours, law) in found.items()
    )
    error, count = recorded()
    return (
        "## Prediction of healthy compute time\n\nMean absolute error per device and iteration, learned from "
        f"{LEARNED} iterations. Generated fleets: {by_work}. The trainer on the virtual clock, a recorded healthy job "
        f"of documents of 1 to 512 tokens: {100 * error:.2f} % over {count:,} device-iterations (virtual seconds follow"
        " the operation count as long as the host keeps up)."
    )
