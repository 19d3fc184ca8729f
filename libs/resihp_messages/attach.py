"""Frames from the client of a job that somebody else launched (`resihp_attach`) to the node's agent: JSON.

The client has no package of ours, so it builds plain maps; these models are what an agent accepts. Which process speaks
is told by the kernel (the peer's credentials), not by the frame.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from resihp_messages.codec import MalformedMessage
from resihp_messages.ids import Count, Finite, RankField, Seconds, Text, Token, Wire

MAX_FRAME_BYTES = 1 << 20
Axis = Literal["pp", "dp", "tp"]
Size = Annotated[int, Field(ge=1, lt=1_000_000)]


class AttachHello(Wire):
    """First frame of a rank, again after every reconnection."""

    type: Literal["hello"] = "hello"
    job: Token
    rank: RankField
    world_size: Size
    local_rank: RankField
    local_world_size: Size
    start: Count = 0
    """How many times the launcher has started the job anew before."""
    axes: dict[Axis, Size] = Field(default_factory=dict)
    """Sizes of the parallel axes, slowest-varying first; empty: data parallel only."""
    hang_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 120.0
    """All ranks without progress for this long: the job hangs."""

    @model_validator(mode="after")
    def _fits(self) -> AttachHello:
        if self.rank >= self.world_size:
            raise ValueError(f"rank {self.rank} is not below world_size {self.world_size}")
        product = 1
        for size in self.axes.values():
            product *= size
        if self.axes and product != self.world_size:
            raise ValueError(f"axes {self.axes} hold {product} ranks, world_size is {self.world_size}")
        return self


class LastCollective(Wire):
    """The newest collective that a rank has begun, from PyTorch's flight recorder."""

    op: Text
    seq: Count
    """Number of the collective in its group: equal on all members."""
    group: Text = ""
    sizes: Text = ""
    done: bool = False
    """It is over: the rank waits for no one in it."""


class AttachBeat(Wire):
    """Sign of life from the client's own thread."""

    type: Literal["beat"] = "beat"
    iteration: Count
    ops: Count
    """Grows with every hook that fires: the sign of progress."""
    phase: Text = ""
    quiet_s: Seconds
    """Since the last progress."""
    protected_s: Seconds = 0.0
    """For this long no progress is in order."""
    dropped: Count = 0
    """Frames that the client had to drop."""
    where: Text = ""
    """Only of a rank that is stuck: `file:line function` of its training thread."""
    collective: LastCollective | None = None


class AttachIteration(Wire):
    """One optimizer step. Compute seconds exclude waits for other ranks."""

    type: Literal["iteration"] = "iteration"
    iteration: Annotated[int, Field(ge=1)]
    step_s: Seconds
    unit_forward_s: tuple[Seconds, ...]
    unit_backward_s: tuple[Seconds, ...]
    unit_tokens: tuple[Count, ...]
    unit_sum_sq_len: tuple[Count, ...]
    lengths_source: Text = ""
    """How tokens and lengths are known: `declared`, `cu_seqlens`, `positions`, `mask`, `shape`, `rows`, `none`."""
    wait_s: Seconds
    phases_s: dict[str, Seconds] = Field(default_factory=dict)
    rss_bytes: Count = 0
    loss: Finite | None = None

    @model_validator(mode="after")
    def _columns(self) -> AttachIteration:
        lengths = {len(c) for c in (self.unit_forward_s, self.unit_backward_s, self.unit_tokens, self.unit_sum_sq_len)}
        if len(lengths) != 1 or not lengths.pop():
            raise ValueError("the columns of micro-batches differ in length, or are empty")
        return self


class AttachBye(Wire):
    """Last frame of a rank that ends by itself."""

    type: Literal["bye"] = "bye"
    iteration: Count
    error: Text = ""
    """The exception that nobody caught; empty: it is done."""


class LauncherHello(Wire):
    """`resihp run` is there and will say when its command has ended."""

    type: Literal["launcher"] = "launcher"
    job: Token


class LauncherBye(Wire):
    """The command has ended: nobody starts the job's ranks again."""

    type: Literal["launcher_bye"] = "launcher_bye"
    exit_code: Annotated[int, Field(ge=-255, le=255)]


AttachFrame = Annotated[
    AttachHello | AttachBeat | AttachIteration | AttachBye | LauncherHello | LauncherBye, Field(discriminator="type")
]
_FRAMES: TypeAdapter[AttachFrame] = TypeAdapter(AttachFrame)


def parse_attach(raw: bytes) -> AttachFrame:
    """Payload of a frame. Raises `MalformedMessage`."""
    try:
        return _FRAMES.validate_python(json.loads(raw))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise MalformedMessage(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"not JSON: {error}") from error
