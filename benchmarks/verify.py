"""The outcome of `resihp verify --random` as a result file.

resihp verify --random 50 --seed 7 --dtype float64 --json v.json
python -m benchmarks.verify v.json
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.report import Spread, machine, table, write


def render(document: dict[str, Any]) -> str:
    """Markdown."""
    sequences = document["sequences"]
    seconds = Spread.of([s["seconds"] for s in sequences])
    kinds = Counter(word for s in sequences for word in _words(s["script"]))
    rows = [
        (
            s["index"],
            s["script"].replace("|", "/"),
            s["epochs"],
            s["deaths"],
            s["lost_iterations"] or "",
            "-" if s["max_abs_diff"] is None else f"{s['max_abs_diff']:.1e}",
            f"{s['samples_once']} of {s['samples_expected']}",
            "yes" if s["holds"] else f"NO: {s['error'][:80]}",
        )
        for s in sequences
    ]
    failed = f"these do not hold: {document['failed']}" if document["failed"] else "every one holds"
    worst = "nothing compared" if document["max_abs_diff"] is None else f"{document['max_abs_diff']:.2g}"
    return "\n\n".join(
        [
            f"{document['run']} sequences, {document['plans']} plans in use, {document['deaths']} deaths, "
            f"{document['iterations_made_again']} iterations made again after a roll-back, "
            f"{document['skipped_events']} scripted events for which the job ended too early: {failed}. Largest "
            f"difference from the undisturbed run {worst} (limit {document['limit']:g}); {document['samples_once']} of "
            f"{document['samples_expected']} samples used exactly once. A sequence hangs, and fails, after 60 s "
            "without any news, or after 150 s.",
            f"Driven: {document['through']}. A sequence takes {seconds.median:.1f} s (median; {seconds.minimum:.1f} to "
            f"{seconds.maximum:.1f}).",
            table(("event", "times"), sorted(kinds.items())),
            table(("", "script", "plans", "deaths", "made again", "difference", "samples once", "holds"), rows),
        ]
    )


def _words(script: str) -> list[str]:
    """The kinds of events in a script's text."""
    found = []
    for event in script.partition(": ")[2].split("; "):
        for part in event.split(" + "):
            word = part.split("@")[0].split()[0]
            late = next((w for w in ("while the others leave", "while groups are rebuilt", "while state moves",
                                     "while the iteration is redone") if w in part), "")  # fmt: skip
            found.append(f"second death {late}" if late else word)
            if "only holder" in part:
                found.append("death of an only holder")
        if event.count("@") > 1 and " + " in event:
            found.append("two deaths at once")
    return found


def main(path: Path) -> None:
    document = json.loads(path.read_text())
    facts = {k: v for k, v in machine().items() if not k.startswith("load")}
    facts |= {"load at the end (1 minute)": document["load_1m"], "dtype": document["dtype"]}
    command = f"resihp verify --random {document['asked']} --seed {document['seed']} --dtype {document['dtype']}"
    print(write("verify", "Random sequences of changes and faults", command, facts, render(document)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("document", type=Path)
    main(parser.parse_args().document)
