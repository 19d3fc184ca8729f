"""`torch.compile` must not look into our functions: it warns of what it finds there (clocks, files, broadcasts).

Inside a compiled model a call of ours is a graph break, with nothing of ours compiled. It matters where DDP is compiled
from outside, which breaks there anyway; `DDP(torch.compile(model))` meets none of this.
"""

from __future__ import annotations

from typing import Any

from resihp_attach.guard import guard


@guard("compiled models")
def leave_alone(function: Any, *, and_what_it_calls: bool) -> None:
    """After `import torch`. All functions of one code object are meant: all guarded ones, if it is one of them."""
    import torch

    frames: Any = torch._C._dynamo.eval_frame
    action = frames._FrameAction
    rest = action.SKIP if and_what_it_calls else action.DEFAULT
    function._torchdynamo_disable = True
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(action.SKIP, rest))
