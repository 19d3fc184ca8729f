"""`python -m resihp_scheduler.solver_process`: questions on standard input, answers on standard output."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import BinaryIO

from resihp_scheduler.planning import NoPlan
from resihp_scheduler.question import Question
from resihp_scheduler.solve import solve
from resihp_scheduler.solver import HEADER, answer_to_dict


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the scheduler stops in order, and its end closes our input
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while (document := _read(source)) is not None:
        try:
            answer = solve(Question.from_dict(json.loads(document)), time.monotonic)
        except Exception as error:  # the border of this process: its caller falls back on the fast planner
            answer = NoPlan(f"planning failed: {type(error).__name__}: {error}")
        raw = json.dumps(answer_to_dict(answer)).encode()
        sink.write(HEADER.pack(len(raw)) + raw)
        sink.flush()
    return 0


def _read(source: BinaryIO) -> bytes | None:
    header = source.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (size,) = HEADER.unpack(header)
    document = source.read(size)
    return document if len(document) == size else None


if __name__ == "__main__":
    sys.exit(main())
