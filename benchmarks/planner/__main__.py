"""`python -m benchmarks.planner`: the large-scale study -> results/planner.md. Simulation only.

Single cases are kept in a file, so the parts may be run one by one, and again until they are complete.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import report
from benchmarks.planner import ablation, paper, policies
from benchmarks.planner.cells import Cells, OutOfTime
from benchmarks.planner.mechanisms import mechanisms
from benchmarks.planner.settings import Setting, settings
from benchmarks.planner.slicing import slicing
from benchmarks.planner.timing import planning_times
from benchmarks.planner.tiny import tiny
from benchmarks.planner.trace import trace
from resihp_plan import Schedule

STORE = Path(".resihp/bench/planner")


@dataclass(frozen=True)
class Options:
    """Of the command line."""

    seeds: int
    large_seeds: int
    models: tuple[str, ...]
    faults: tuple[str, ...] | None
    devices: tuple[int, ...]


def _study(cells: Cells, options: Options, chosen: tuple[Setting, ...]) -> str:
    wanted = [s for s in chosen if s.model in options.models]
    study = policies.Study(cells, wanted, options.seeds, options.large_seeds)
    complete = study.run(options.faults)
    table = study.table()  # counts the cases
    missing = "" if complete else " Not all cases were worked out; rows without some of theirs are missing."
    return f"""Throughput / best-known healthy plan, mean over the seeds; (xN): N runs could not continue and
count as 0 in the column; they are left out of the ratios. ± is the 95 % confidence interval. All policies choose among
the same schedules, and all times are those of programs.{missing}

{table}

No faulted case beats the best-known healthy plan ({study.cases} cases; in {study.improved} the plan that was found for
the faults was a better one for healthy devices, too, and became the reference)."""


def _zero_bubble(cells: Cells, options: Options) -> str:
    chosen = tuple(
        Setting(s.model, s.tp, s.dp, s.pp, s.per_replica, f"{s.regime}, zb-h1", schedules=(Schedule.ZB_H1,))
        for s in settings()
        if s.model in ("7B", "13B")
    )
    return _study(cells, options, chosen)


PARTS: Mapping[str, tuple[str, Callable[[Cells, Options], str]]] = {
    "policies": ("Policies, 1F1B with 0 to 2 more micro-batches in flight", lambda c, o: _study(c, o, settings())),
    "zb": ("Policies, zero bubble (split backward)", _zero_bubble),
    "tiny": ("Against every plan of four devices", lambda c, _: tiny(c)),
    "ablation": ("What each ingredient is worth", lambda c, o: ablation.ablation(c, o.seeds)),
    "penalty": ("Slower kernels in uneven groups", lambda c, o: ablation.penalties(c, o.seeds)),
    "error": ("Error in p", lambda c, o: ablation.errors(c, o.seeds)),
    "table6": ("The paper's table 6: losses, samples/s", lambda c, _: paper.table_6(c)),
    "fig2": ("The paper's figure 2: amplification", lambda c, _: paper.amplification(c)),
    "fig9": ("The paper's figure 9: slow devices", lambda c, o: paper.fail_slow(c, o.seeds)),
    "fig10": ("The paper's figure 10: losses and slow devices", lambda c, o: paper.mixed(c, o.seeds)),
    "fig11": ("The paper's figure 11: each mechanism alone", lambda c, _: mechanisms(c)),
    "fig14": ("The paper's figure 14: 256 devices, recurring faults", lambda c, o: paper.recurring(c, o.seeds)),
    "trace": ("30 days of a production trace", lambda c, _: trace(c)),
    "slicing": ("Batch slicing", lambda _, o: slicing(o.seeds)),
    "timing": ("Planning time", lambda _, o: planning_times(o.devices)),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--large-seeds", type=int, default=20, help="for 64 devices and more")
    parser.add_argument("--models", default="7B,13B,30B,70B")
    parser.add_argument("--faults", help="only these of the policies' scenarios, such as mixed,recurring")
    parser.add_argument("--devices", default="64,256,4096,16384", help="sizes for the planning time")
    parser.add_argument("--parts", default=",".join(PARTS), help="in this order: %(default)s")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="start no case after so many seconds")
    given = parser.parse_args()
    models, sizes = tuple(given.models.split(",")), tuple(int(n) for n in given.devices.split(",") if n)
    faults = None if given.faults is None else tuple(given.faults.split(","))
    options = Options(given.seeds, given.large_seeds, models, faults, sizes)
    cells = Cells(STORE / "cells.jsonl", given.budget_s)
    commit = os.environ.get("RESIHP_COMMIT") or report.commit()
    for name in given.parts.split(","):
        try:
            text = PARTS[name][1](cells, options)
        except OutOfTime as stopped:
            print(f"{name}: stopped before {stopped}; {len(cells.known)} cases known; run again", flush=True)
            return 3
        known = {"text": text, "load": report.machine()["load before the run"], "commit": commit}
        (STORE / f"{name}.json").write_text(json.dumps(known))
        print(f"{name}: complete", flush=True)
    print(_write("python -m benchmarks.planner"))
    return 0


def _write(command: str) -> Path:
    """The report of all parts that are complete, each with the planner of its own commit."""
    body = ["Simulation only; nothing here ran on GPUs. Worked out in pieces, at low priority beside other work.", ""]
    for name, (title, _) in PARTS.items():
        path = STORE / f"{name}.json"
        if path.exists():
            known = json.loads(path.read_text())
            about = f"(Load of the machine: {known['load']}. Planner of commit {known['commit']}.)"
            body += [f"## {title}", "", known["text"], "", about, ""]
    facts = {k: v for k, v in report.machine().items() if k != "load before the run"}
    return report.write("planner", "The planner", command, facts, "\n".join(body))


if __name__ == "__main__":
    sys.exit(main())
