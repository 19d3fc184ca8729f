"""`resihp verify --random N`: random sequences of plan changes and faults on real workers, each compared.

The sequences drive workers, zygote and store directly, without bus, scheduler and agents, so that one takes seconds;
what they try is the engine. The program is another process, because it needs torch. `--system M` adds M whole demos.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from resihp_cli.commands import system_trials
from resihp_cli.errors import CliError
from resihp_cli.json_file import check_json_path, write_document
from resihp_cli.outcome import PARITY_LIMIT


def run_trials(*, count: int, seed: int, only: int | None, system: int, dtype: str, json_path: Path | None) -> int:
    """0 if every sequence holds. Raises `CliError`."""
    if dtype not in PARITY_LIMIT:
        raise CliError(f"--dtype {dtype!r}: expected one of {', '.join(PARITY_LIMIT)}")
    check_json_path(json_path)
    limit = PARITY_LIMIT[dtype]
    command = [sys.executable, "-m", "resihp_trainer.trials", "--seed", str(seed), "--count", str(count)]
    command += ["--dtype", dtype, "--limit", str(limit), *(["--only", str(only)] if only is not None else [])]
    asked = (count if only is None else 1) + system
    done: list[dict[str, Any]] = []
    to_file = json_path is not None and str(json_path) != "-"
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sequences", total=asked)
        for line in itertools.chain(_lines(command), system_trials.run_trials(seed, system, count, dtype)):
            if "begins" in line:
                bar.update(task, description=f"sequence {line['begins']}")
                continue
            done.append(line)
            bar.advance(task)
            print(told(line), flush=True)
            if json_path is not None and to_file:  # each time: an interrupted run leaves what it found
                write_document(summary(done, seed=seed, dtype=dtype, limit=limit, count=asked), json_path)
    document = summary(done, seed=seed, dtype=dtype, limit=limit, count=asked)
    print(conclusion(document))
    if json_path is not None and not to_file:
        write_document(document, json_path)
    return 0 if document["holds"] else 1


def _lines(command: list[str]) -> Iterator[dict[str, Any]]:
    """What the program says. Raises `CliError` if it could not run the trials."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            for raw in process.stdout:
                yield json.loads(raw)
            said = process.stderr.read().decode(errors="replace").strip().splitlines()
            code = process.wait()
        except BaseException:
            process.kill()
            raise
    if code not in (0, 1):
        raise CliError(f"the trials ended with {code}: {said[-1] if said else 'no reason given'}")


def told(line: dict[str, Any]) -> str:
    """One sequence in words; all that is needed to look into it if it failed."""
    head = f"{line['index']:3d}  {line['script']}"
    difference = "nothing to compare" if line["max_abs_diff"] is None else f"difference {line['max_abs_diff']:.2g}"
    samples = f"{line['samples_once']} of {line['samples_expected']} samples once"
    back = f"; {line['lost_iterations']} iterations made again" if line["lost_iterations"] else ""
    late = f"; {line['skipped']} events came too late" if line["skipped"] else ""
    text = f"{head}\n     {difference}; {samples}; {line['epochs']} plans{back}{late}; {line['seconds']:.1f} s"
    if line["holds"]:
        return text
    replicas = "" if line["replicas_equal"] else "; replicas differ"
    plans = "".join(f"\n       {entry}" for entry in line["log"])
    return f"{text}{replicas}\n     DOES NOT HOLD: {line['error'] or 'see above'}{plans}"


def summary(done: list[dict[str, Any]], *, seed: int, dtype: str, limit: float, count: int) -> dict[str, Any]:
    """The document of `--json`."""
    differences = [line["max_abs_diff"] for line in done if line["max_abs_diff"] is not None]
    return {
        "seed": seed,
        "dtype": dtype,
        "limit": limit,
        "asked": count,
        "run": len(done),
        "failed": [line["index"] for line in done if not line["holds"]],
        "holds": len(done) == count and all(line["holds"] for line in done),
        "max_abs_diff": max(differences, default=None),
        "samples_expected": sum(line["samples_expected"] for line in done),
        "samples_once": sum(line["samples_once"] for line in done),
        "plans": sum(line["epochs"] for line in done),
        "deaths": sum(line["deaths"] for line in done),
        "skipped_events": sum(line["skipped"] for line in done),
        "iterations_made_again": sum(line["lost_iterations"] for line in done),
        "seconds": sum(line["seconds"] for line in done),
        "load_1m": f"{os.getloadavg()[0]:.1f}",
        "through": "workers, zygote and store, agents and scheduler played, unless the script says: whole system",
        "sequences": done,
    }


def conclusion(document: dict[str, Any]) -> str:
    """The last line."""
    worst = "nothing compared" if document["max_abs_diff"] is None else f"{document['max_abs_diff']:.2g}"
    text = (
        f"{document['run']} sequences of seed {document['seed']} "
        f"({document['plans']} plans, {document['deaths']} deaths): largest difference {worst} "
        f"(limit {document['limit']:g}, {document['dtype']}), {document['samples_once']} of "
        f"{document['samples_expected']} samples once"
    )
    failed = document["failed"]
    if document["holds"]:
        return f"{text}: holds"
    again = f"; again: resihp verify --random 1 --seed {document['seed']} --only {failed[0]}" if failed else ""
    return f"{text}: sequences {failed} do not hold{again}"
