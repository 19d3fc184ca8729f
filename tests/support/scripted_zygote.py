"""The real zygote without torch: forks scripted workers, and a store that only listens.

Run as `python -m support.scripted_zygote --control-fd N` with tests/ on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resihp_trainer import zygote
from support import scripted_worker

COMMAND = (sys.executable, "-c", f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); "
           "from support.scripted_zygote import main; main()")  # fmt: skip
"""For `AgentSettings.zygote_command`: needs no PYTHONPATH."""


class ScriptedZygote(zygote.Zygote):
    """Forks like its base; the store is a listening socket."""

    def _start_store(self, request: dict[str, Any]) -> None:
        listener = socket.create_server((request["host"], 0))
        address = f"{request['host']}:{listener.getsockname()[1]}"
        pid = self._fork(_wait_for_ever, keep=(listener.fileno(),), log_fd=None)
        listener.close()
        self._reply({"op": "store", "pid": pid, "address": address})


def _wait_for_ever() -> None:
    signal.pause()


def _wait_for_ever() -> None:
    signal.pause()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until the control socket closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--control-fd", type=int, required=True)
    control = socket.socket(fileno=parser.parse_args(arguments).control_fd)
    ScriptedZygote(control, scripted_worker.main).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
