"""`python -m benchmarks.detection`: writes benchmarks/results/detection.md."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.detection import cost, iterations, links, live, prediction, real, stream_cost
from benchmarks.detection.devices import Cell, run_cell
from benchmarks.detection.lengths import document_lengths, micro_batches
from benchmarks.detection.score import rate, share
from benchmarks.report import machine, table, write

SLOWDOWNS = (1.1, 1.2, 1.5, 2.0)
CONTEXTS = {"packed 8K": 8192, "packed 16K": 16384, "packed 32K": 32768, "unpacked": None}


def main(given: argparse.Namespace) -> int:
    """0, or 3 if time ran out: what is done lies in `--parts`, so the same command goes on."""
    data = Path(given.data) if given.data else None
    parts = Parts(given, data)
    for section in given.only or parts.sections():
        if not parts.done(section) and time.monotonic() - parts.began > given.stop_after_s:
            print(f"time is up before {section!r}; run the same command again", flush=True)
            return 3
        parts.text(section)
    if given.only:
        return 0
    command = f'make bench-detection ARGS="{given.command}"' if given.command else "make bench-detection"
    facts = {**parts.facts, "CPU of the run": f"{parts.cpu_s():.0f} s", "seed": str(given.seed)}
    body = "\n\n".join(parts.text(section) for section in parts.sections())
    path = write("detection", "Detection of slow devices, links and iterations", command, facts, body)
    print(path.read_text())
    return 0


class Parts:
    """Sections of the result, each made once: in a folder, if one is given, so that a long run can be cut."""

    def __init__(self, given: argparse.Namespace, data: Path | None) -> None:
        self._given, self._data = given, data
        self._folder = Path(given.parts) if given.parts else Path(tempfile.mkdtemp(prefix="resihp-bench-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._makers: dict[str, Callable[[np.random.Generator], str]] = {
            "introduction": self._introduction,
            **{f"devices {name}": partial(self._cell, name) for name in CONTEXTS},
            "rules": self._rules,
            "prediction": self._prediction,
            "iterations": self._iterations,
            "links": self._links,
            **({"traces": self._traces} if data is not None else {}),
            "cost": self._cost,
            "stream": self._stream,
            **(_LIVE if given.live or given.only else {}),
        }
        self.began = time.monotonic()
        self.facts = machine()

    def sections(self) -> tuple[str, ...]:
        return tuple(self._makers)

    def done(self, section: str) -> bool:
        return self._file(section).is_file()

    def text(self, section: str) -> str:
        """Made now, or read."""
        if not self.done(section):
            began = time.process_time()
            rng = np.random.default_rng([self._given.seed, zlib.crc32(section.encode())])
            made = {"text": self._makers[section](rng), "cpu_s": time.process_time() - began}
            self._file(section).write_text(json.dumps(made))
            print(made["text"], flush=True)
        return str(json.loads(self._file(section).read_text())["text"])

    def cpu_s(self) -> float:
        return float(sum(json.loads(self._file(s).read_text())["cpu_s"] for s in self._makers))

    def _file(self, section: str) -> Path:
        return self._folder / f"{section.replace(' ', '-')}.json"

    def _pool(self, name: str) -> tuple[npt.NDArray[np.float64], str]:
        rng = np.random.default_rng([self._given.seed, zlib.crc32(name.encode())])
        lengths, source = document_lengths(self._data, rng)
        return micro_batches(lengths, CONTEXTS[name], 4000, rng), source

    # --- sections -------------------------------------------------------------------------------------------------

    def _introduction(self, _: np.random.Generator) -> str:
        return _INTRODUCTION.format(source=self._pool("unpacked")[1], seeds=self._given.seeds)

    def _cell(self, name: str, rng: np.random.Generator) -> str:
        g = self._given
        sizes = {"seeds": g.seeds, "rounds": g.rounds, "baseline_seeds": g.baseline_seeds}
        cell = run_cell(name, self._pool(name)[0], SLOWDOWNS, **sizes, rng=rng)
        self._file(f"rules {name}").write_text(json.dumps([[str(x) for x in row] for row in _others(cell)]))
        return f"## Devices: {name}\n\n" + table(_HEADER, _ours(cell))

    def _rules(self, _: np.random.Generator) -> str:
        rows = [row for name in CONTEXTS for row in json.loads(self._file(f"rules {name}").read_text())]
        return "## Devices: the same streams, other rules\n\n" + table(_RULES, rows)

    def _prediction(self, rng: np.random.Generator) -> str:
        return prediction.text({name: self._pool(name)[0] for name in CONTEXTS}, rng)

    def _iterations(self, rng: np.random.Generator) -> str:
        return _iterations(*iterations.run(self._pool("packed 32K")[0], (1.25, 1.5, 2.0), self._given.runs, rng))

    def _links(self, rng: np.random.Generator) -> str:
        result = links.run(2.0, self._given.links, rng)
        return (
            "## Links\n\n2x slower transfers: right edge named, and no other, in "
            f"{share(result.found, result.total)} % of {result.total} faults; {result.wrong} wrong edges. Noise of "
            "transfers 10 %, late peers up to 20 transfers."
        )

    def _traces(self, _: np.random.Generator) -> str:
        assert self._data is not None
        return "## Real traces\n\n" + table(("trace", "truth", "wanted", "said"), real.rows(self._data))

    def _cost(self, rng: np.random.Generator) -> str:
        devices, ms, per_s, size = cost.measure(self._pool("unpacked")[0], rng, 20)
        return (
            f"## Cost\n\nJudging only, {devices} devices in one process: {ms:.1f} ms of CPU per iteration "
            f"({per_s:,.0f} device-records per CPU second); snapshot {size:.0f} bytes per device."
        )

    def _stream(self, rng: np.random.Generator) -> str:
        c = stream_cost.measure(self._given.replicas, 8, rng)
        return (
            f"With the bus and decoding: {c.devices} devices on {c.messages} nodes ({c.report_bytes} bytes of JSON per "
            f"report of 8 devices), read from a real server's stream: {c.records_per_s:,.0f} device-records per second "
            f"of one core in the detector. At one iteration per second that is {c.detector_s:.2f} cores for the "
            f"detector and {c.server_s:.2f} for the server; memory grows by {c.bytes_per_device:,.0f} bytes per "
            f"device, a snapshot holds {c.kept_bytes_per_device:.0f}."
        )


_LIVE: dict[str, Callable[[np.random.Generator], str]] = {
    "live half": lambda _: "## Whole demos on the virtual clock\n\n" + live.slow(0.5, 120),
    "live small": lambda _: live.slow(0.83, 120),
    "live killed": lambda _: live.killed(0.83, 70),
    "live link": lambda _: live.link(60),
    "live quiet": lambda _: live.quiet(1000),
}

_INTRODUCTION = """Generated fleets of 256 devices (DP 8 x PP 4 x TP 8), {seeds} seeds per row, lengths: {source}.
Noise 3 % per micro-batch, 2 % per device and iteration, hiccups in 0.5 % of device-iterations (+30 to 100 %), common
drift 2 %, device offsets 1.5 %. In every stage four devices of 64 are slow at the same time, one of each slowdown.
Delay counts the faulty iterations seen, the naming one included; a fault not named within 20 counts as missed. Shares
in percent and rates carry 95 % intervals.
"""

_HEADER = (
    "work", "slowdown", "faults", "found %", "delay median", "delay p95", "named alone %", "recovery noticed %",
    "severity error p50 / p95 / p99 %", "false alarms per 1,000 device-iterations", "device-iterations",
)  # fmt: skip
_RULES = (
    "work",
    "rule",
    "false alarms per 1,000",
    *(f"found % at {s}x" for s in SLOWDOWNS),
    "median delay at 1.2x / 1.5x",
)


def _ours(cell: Cell) -> list[list[object]]:
    rows: list[list[object]] = []
    for slowdown, s in cell.scores["ResiHP"].items():
        errors = cell.severity_errors[slowdown]
        severity = " / ".join(f"{100 * np.quantile(errors, q):.1f}" for q in (0.5, 0.95, 0.99)) if errors else "-"
        n = len(s.faults)
        rows.append([
            cell.work, f"{slowdown}x", n, share(s.found, n), s.delay(0.5), s.delay(0.95), share(s.named_alone, n),
            share(s.recovered, s.found), severity, rate(s.false_alarms, s.device_iterations),
            f"{s.device_iterations:,}",
        ])  # fmt: skip
    return rows


def _others(cell: Cell) -> list[list[object]]:
    rows: list[list[object]] = []
    for name, scores in cell.scores.items():
        one = next(iter(scores.values()))
        found = [share(s.found, len(s.faults)) for s in scores.values()]
        delays = f"{scores[1.2].delay(0.5)} / {scores[1.5].delay(0.5)}"
        rows.append([cell.work, name, rate(one.false_alarms, one.device_iterations), *found, delays])
    return rows


def _iterations(found: dict[str, dict[float, iterations.Result]], errors: list[iterations.Errors]) -> str:
    rows = []
    for name, by in found.items():
        false = sum(r.false_alarms for r in by.values())
        healthy = sum(r.healthy_iterations for r in by.values())
        delays = [f"{np.median(r.delays):.0f}" if r.delays else "-" for r in by.values()]
        rows.append([
            name, rate(false, healthy), *(share(r.found, r.total) for r in by.values()), " / ".join(delays)
        ])  # fmt: skip
    known = found[iterations.MATCHED].values()
    named = share(sum(r.replica_named for r in known), sum(r.found for r in known))
    header = ("rule", "false alarms per 1,000 iterations", "found % at 1.25x", "1.5x", "2x", "median delay")
    worst = max(errors, key=lambda e: e.all)
    rest = [e.without_hiccups for e in errors]
    return (
        "## Iteration time only\n\nOne device slows down, on the critical path or not; DP 2 x PP 4, packed 32K, "
        f"batches not balanced between the replicas; {len(errors)} runs. Prediction error (mean absolute) over healthy "
        f"iterations: {100 * np.mean([e.all for e in errors]):.2f} % mean, {100 * worst.all:.2f} % in the worst run, "
        f"which has {worst.num_hiccups} hiccups of +30 to 100 % in its {iterations.FAULT_AT - 21} iterations; without "
        f"the hiccups, which nothing predicts, {100 * np.mean(rest):.2f} % mean, {100 * np.max(rest):.2f} % in the "
        f"worst run. {100 * iterations.NOISE:.0f} % of noise alone (floor) make "
        f"{100 * iterations.NOISE * 0.798:.2f} %, a drift of up to 2 % comes on top. With the plan "
        f"known, the slow device's replica is named in {named} % of what is found.\n\n" + table(header, rows)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection", description="Measure detection.")
    parser.add_argument("--data", default=os.environ.get("RESIHP_DATA_DIR"), help="folder of real traces and lengths")
    parser.add_argument("--seeds", type=int, default=20, help="jobs of 256 devices per stream")
    parser.add_argument("--rounds", type=int, default=25, help="faults per device group and slowdown")
    parser.add_argument("--baseline-seeds", type=int, default=2, help="jobs that the baselines see")
    parser.add_argument("--runs", type=int, default=12, help="runs per slowdown with iteration time only")
    parser.add_argument("--links", type=int, default=400, help="link faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=320, help="of 32 devices, for the cost with the bus")
    parser.add_argument("--parts", help="folder that keeps finished sections, so that a long run can be cut")
    parser.add_argument("--live", action="store_true", help="also whole demos: minutes each, with real processes")
    parser.add_argument("--only", action="append", metavar="SECTION", help="make these sections and write no result")
    parser.add_argument("--stop-after-s", type=float, default=float("inf"), help="begin no section after this time")
    arguments = parser.parse_args()
    told = ("seeds", "rounds", "baseline_seeds", "runs", "links", "seed", "replicas")
    arguments.command = " ".join(
        f"--{name.replace('_', '-')} {getattr(arguments, name)}"
        for name in told
        if getattr(arguments, name) != parser.get_default(name)
    )
    arguments.command += " --live" if arguments.live else ""
    sys.exit(main(arguments))
