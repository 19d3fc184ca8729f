"""Calls of the whole model: DDP, the root of FSDP2, or a module that was named to `attach`.

A call with gradients is a micro-batch; one without is evaluation, announced work besides training.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from resihp_attach import lengths
from resihp_attach.guard import guard
from resihp_attach.watch import watch

_recorder = watch.recorder
_evaluations: list[float] = []
"""When calls without gradients began, the outermost one first."""


@functools.cache
def names(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Of the positional parameters of a class's `forward`, without `self`."""
    parameters = inspect.signature(forward).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)[1:]


@guard("lengths")
def _work(args: tuple[Any, ...], kwargs: dict[str, Any], model: Any) -> lengths.Work | None:
    """`model(ids, mask)` tells as much as `model(input_ids=ids, attention_mask=mask)`. None if that fails."""
    if args and model is not None:
        kwargs = {**dict(zip(names(type(model).forward), args, strict=False)), **kwargs}
    return lengths.of_call(args, kwargs)


@guard("model call")
def begins(args: tuple[Any, ...], kwargs: dict[str, Any], model: Any = None) -> None:
    """`model`, if it is known, is called with these arguments."""
    if not sys.modules["torch"].is_grad_enabled():
        _evaluations.append(time.perf_counter())
        return
    work = lengths.NOTHING
    if _recorder.declared is None:
        work = _work(args, kwargs, model) or work
    _recorder.forward_begins(work)


@guard("model call")
def ends() -> None:
    """It has returned, or raised."""
    if not _evaluations:
        _recorder.forward_ends()
        return
    begun_s = _evaluations.pop()
    if not _evaluations and not _recorder.phase:
        _recorder.spent("eval", time.perf_counter() - begun_s)


def hook(torch: ModuleType) -> None:
    """After `import torch`: DDP."""
    ddp = torch.nn.parallel.DistributedDataParallel
    original = ddp.forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        begins(args, kwargs, getattr(self, "module", None))
        try:
            return original(self, *args, **kwargs)
        finally:
            ends()

    ddp.forward = forward


def hook_fsdp(module: ModuleType) -> None:
    """After the import of FSDP2's state: the root's forward."""
    state = module.FSDPState
    pre, post = state._root_pre_forward, state._post_forward

    @functools.wraps(pre)
    def root_pre_forward(self: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if self._is_root:
            begins(args, kwargs, module)
        return pre(self, module, args, kwargs)

    @functools.wraps(post)
    def post_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = post(self, *args, **kwargs)
        if self._is_root:
            ends()
        return result

    state._root_pre_forward, state._post_forward = root_pre_forward, post_forward


def observe(model: Any) -> None:
    """A module that none of the wrappers above is around. If it is compiled later, its calls are not seen: whatever a
    compiled graph contains may make `fullgraph=True` fail."""
    kind = type(model).__name__
    if kind == "DistributedDataParallel" or hasattr(model, "set_requires_gradient_sync"):
        return  # seen already
    is_compiling = sys.modules["torch"].compiler.is_compiling

    def before(called: Any, args: Any, kwargs: Any) -> None:
        if not is_compiling():
            begins(args, kwargs, called)

    def after(*_: Any) -> None:
        if not is_compiling():
            ends()

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, always_call=True)
