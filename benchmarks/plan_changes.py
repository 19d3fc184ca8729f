"""Does a job that changes its plan many times leak? Consecutive planned changes between unlike layouts, in one job.

    python -m benchmarks.plan_changes --changes 30

After each change the workers' process ids, threads, descriptors and memory are read from outside over one iteration, a
few iterations later, when the groups of the old plan are retired and a snapshot in the new layout is complete. At the
end the parameters are compared with those of an undisturbed run (float64).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.demo import JOB, RunningDemo, demo
from benchmarks.processes import Holdings, look_at, typical
from benchmarks.report import machine, milliseconds, table, write
from resihp_cli.client import GatewayClient, is_temporary
from resihp_cli.errors import CliError

EVERY = 6
"""Iterations between two changes."""
SETTLE = 2
"""Iterations after which the look begins; it takes one more."""
LOOK_EVERY_S = 0.05
FIRST_AT = 4


def _stage(layers: tuple[int, int], ranks: Sequence[int], weights: Sequence[int] = ()) -> dict[str, Any]:
    return {"layers": list(layers), "ranks": list(ranks), "weights": list(weights or [1] * len(ranks))}


def _plan(*replicas: tuple[int, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    return {"replicas": [{"num_micro_batches": m, "stages": list(stages)} for m, stages in replicas]}


LAYOUTS = {
    "uneven": _plan(
        (3, [_stage((0, 3), [0, 1]), _stage((3, 8), [2, 3], [3, 1])]),
        (5, [_stage((0, 5), [4, 5]), _stage((5, 8), [6, 7])]),
    ),
    "regrouped": _plan(
        (4, [_stage((0, 4), [7, 2]), _stage((4, 8), [5, 0])]),
        (4, [_stage((0, 8), [3, 6, 1, 4])]),
    ),
    "even": _plan(
        (4, [_stage((0, 4), [0, 1]), _stage((4, 8), [2, 3])]),
        (4, [_stage((0, 4), [4, 5]), _stage((4, 8), [6, 7])]),
    ),
}
"""Other layer cuts and shares; other partners, TP 4 without a pipeline beside TP 2 x PP 2; and back."""


@dataclass(frozen=True)
class Look:
    """All workers, a few iterations after a change."""

    change: int
    """0: before the first one."""
    workers: dict[int, Holdings]


@dataclass(frozen=True)
class Series:
    """One job's looks and its document."""

    looks: Sequence[Look]
    document: dict[str, Any]

    def same_processes(self) -> bool:
        return all(
            {r: (h.pid, h.created_at) for r, h in look.workers.items()}
            == {r: (h.pid, h.created_at) for r, h in self.looks[0].workers.items()}
            for look in self.looks
        )

    def settled(self) -> Sequence[Look]:
        """Looks at the last one's layout, from the second visit on: what differs between them would be a leak."""
        period = len(LAYOUTS)
        return [look for look in self.looks[1 + period :] if look.change % period == self.looks[-1].change % period]

    def growth(self, what: str) -> float:
        """Largest relative growth of a quantity (a field of `Holdings`) over ranks: mean of the last third of the
        settled looks over that of the first third. Single looks at memory differ by 3 % in both directions."""
        looks = self.settled()
        third = max(1, len(looks) // 3)

        def mean(some: Sequence[Look], rank: int) -> float:
            return statistics.fmean(getattr(look.workers[rank], what) for look in some)

        return max(mean(looks[-third:], r) / mean(looks[:third], r) - 1.0 for r in looks[0].workers)


async def measure(changes: int, extra: Sequence[str] = ()) -> Series:
    """One demo with `changes` planned changes. Raises `DemoFailed` unless it holds all its promises."""
    with tempfile.TemporaryDirectory(prefix="resihp-plans-") as folder:
        arguments = ["--iterations", str(FIRST_AT + changes * EVERY + 4), *extra]
        for number, name in zip(range(changes), _cycle(changes), strict=True):
            path = Path(folder) / f"{name}.json"
            path.write_text(json.dumps(LAYOUTS[name]))
            arguments += ["--switch", f"{path}@{FIRST_AT + number * EVERY}"]
        async with demo(arguments) as running:
            looks = await _looks(running, changes)
            return Series(looks, await running.result())


def _cycle(changes: int) -> list[str]:
    names = list(LAYOUTS)
    return [names[number % len(names)] for number in range(changes)]


async def _looks(running: RunningDemo, changes: int) -> list[Look]:
    found: list[Look] = []
    async with GatewayClient((await running.info()).gateway_url) as client:
        await running.reach(client, FIRST_AT - 2)
        for change in range(changes + 1):
            if change:
                await _settle(running, client, change)
            devices = await client.devices(JOB)
            pids = {d.rank: pid for d in devices if (pid := d.live_pid or d.pid) is not None}
            found.append(Look(change, await _over_an_iteration(running, client, pids)))
            rss_mib = " ".join(f"{h.rss_bytes / 2**20:.1f}" for h in found[-1].workers.values())
            print(f"{change} of {changes} changes; resident MiB by rank: {rss_mib}", file=sys.stderr, flush=True)
    return found


async def _over_an_iteration(
    running: RunningDemo, client: GatewayClient, pids: Mapping[int, int]
) -> dict[int, Holdings]:
    end, looks = await running.committed(client) + 1, [look_at(pids)]
    while await running.committed(client) < end:
        running.check_alive()
        await asyncio.sleep(LOOK_EVERY_S)
        looks.append(look_at(pids))
    return typical(looks)


async def _settle(running: RunningDemo, client: GatewayClient, change: int) -> None:
    """Wait until this many changes are applied and `SETTLE` more iterations are committed."""
    while True:
        running.check_alive()
        try:
            applied = [r for r in await client.reconfigurations(JOB) if r.mode == "planned" and r.status == "applied"]
        except CliError as error:
            if not is_temporary(error):
                raise
            applied = []
        if len(applied) >= change:
            break
        await asyncio.sleep(0.05)
    await running.reach(client, await running.committed(client) + SETTLE)


def render(series: Series) -> str:
    """Markdown."""
    rows = []
    for look in series.looks:
        holdings = list(look.workers.values())
        rss = [h.rss_bytes / 2**20 for h in holdings]
        rows.append(
            [
                str(look.change),
                _range([h.num_threads for h in holdings]),
                _range([h.num_descriptors for h in holdings]),
                f"{min(rss):.1f} to {max(rss):.1f}",
            ]
        )
    changes = series.document["planned_changes"]
    totals = [c["total_s"] for c in changes if c["total_s"] is not None]
    parity = series.document["parity"]["max_abs_diff"]
    summary = [
        f"{len(changes)} changes applied; the same {len(series.looks[0].workers)} processes throughout: "
        f"{'yes' if series.same_processes() else 'NO'}.",
        f"Largest growth of any rank between visits of the same layout, first third to last third: threads "
        f"{series.growth('num_threads'):+.1%}, descriptors {series.growth('num_descriptors'):+.1%}, "
        f"memory {series.growth('rss_bytes'):+.1%}.",
        f"Parameters against an undisturbed run: largest difference {parity:.2g} (float64).",
    ]
    if totals:
        summary.append(f"A change takes {milliseconds(min(totals))} to {milliseconds(max(totals))} ms.")
    return "\n\n".join([*summary, table(("after change", "threads", "descriptors", "resident MiB"), rows)])


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else f"{min(values)} to {max(values)}"


async def main(changes: int) -> None:
    job = "float64, 8 workers (gloo, loopback), one agent, defaults otherwise"
    facts = {**machine(), "job": job, "layouts": ", ".join(LAYOUTS)}
    series = await measure(changes, ["--dtype", "float64", "--verify"])
    command = f"python -m benchmarks.plan_changes --changes {changes}"
    title = "Consecutive planned changes of the plan in one job"
    print(write("plan_changes", title, command, facts, render(series)).read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=30)
    sys.exit(asyncio.run(main(parser.parse_args().changes)))
