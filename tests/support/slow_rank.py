"""Runs a training script with one rank's backward passes made slower from some step on; the script knows nothing of it.

python slow_rank.py RANK MILLISECONDS FROM_STEP SCRIPT [ARGUMENT ...]

The gradient of the first `Embedding` or `Linear` that is called in a step takes longer, asleep. RANK -1: nobody's.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

if "megatron" in sys.argv[4]:
    import megatron_on_cpu  # type: ignore[import-not-found]

    megatron_on_cpu.install()


class Slow:
    """Of this process."""

    def __init__(self, seconds: float, first: int) -> None:
        self._seconds, self._first, self._step, self._is_marked = seconds, first, 1, False

    def called(self, module: Any, args: Any, output: Any) -> None:
        if not self._is_marked and torch.is_tensor(output) and output.requires_grad and torch.is_grad_enabled():
            self._is_marked = True
            output.register_hook(self._sleep)  # type: ignore[no-untyped-call]

    def _sleep(self, gradient: Any) -> None:
        self._is_marked = False  # the next micro-batch
        if self._step >= self._first:
            time.sleep(self._seconds)

    def stepped(self, *args: Any) -> None:
        self._step += 1


def main() -> None:
    rank, milliseconds, first, script = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    if rank == int(os.environ["RANK"]):
        slow = Slow(milliseconds / 1000, first)
        register_module_forward_hook(slow.called)
        register_optimizer_step_post_hook(slow.stepped)
    sys.argv = sys.argv[4:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
