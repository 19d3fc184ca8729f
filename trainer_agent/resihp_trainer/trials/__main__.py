"""`python -m resihp_trainer.trials`: random sequences of changes and faults; one JSON line per sequence on stdout.

Exit codes: 0 every sequence kept its promises, 1 some did not, 2 the trials could not be run (one line on stderr).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from resihp_trainer.trials.outcome import run_script
from resihp_trainer.trials.script import random_script
from resihp_trainer.trials.zygote_client import ZygoteClient


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m resihp_trainer.trials", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--first", type=int, default=0, help="begin with this sequence")
    parser.add_argument("--only", type=int, help="just this sequence")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--limit", type=float, default=1e-9, help="largest difference that holds")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # as in the workers; small operators on a busy machine lose by more
    indices = range(options.first, options.count) if options.only is None else [options.only]
    all_hold = True
    try:
        with tempfile.TemporaryDirectory(prefix="resihp-trials-") as folder:
            zygote = ZygoteClient(Path(folder), environment={"OMP_NUM_THREADS": "1"})
            try:
                _, store = zygote.store()
                for index in indices:
                    script = random_script(options.seed, index)
                    _say({"begins": index, "script": str(script)})
                    output = Path(folder) / str(index)
                    outcome = run_script(zygote, store, script, options.dtype, output)
                    holds = outcome.holds(options.limit)
                    all_hold &= holds
                    _say({**asdict(outcome), "holds": holds})
            finally:
                zygote.close()
    except (OSError, RuntimeError) as error:
        print(f"trials: {error}", file=sys.stderr)
        return 2
    return 0 if all_hold else 1


def _say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
