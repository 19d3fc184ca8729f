"""Identifiers and shared field types of the wire contract. Imports nothing of ours."""

from __future__ import annotations

import math
import uuid
from typing import Annotated, Any, Literal, NewType

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, StringConstraints

Rank = NewType("Rank", int)
"""A device's fixed number in its job (the *plan rank*); never a torch rank."""

Token = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""One subject token: a job, node or service name. No dots, no wildcards, no spaces."""

RankField = Annotated[int, Field(ge=0, lt=1_000_000)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
"""A duration measured on a monotonic clock, in seconds."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
Distances = tuple[Finite, Finite, Finite]
"""Sums over elements of |earlier - redone|: of parameters, first and second moments."""
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16,64}$")]
Text = Annotated[str, StringConstraints(max_length=4096)]
StateSource = Literal["live", "snapshot", "checkpoint"]
"""Where the state of an epoch came from: its holders, copies in the memory of others, or disk."""

_MAX_DEPTH = 32


def plain_json(value: Any, depth: int = 0) -> Any:
    """numpy scalars and arrays -> plain data. Raises ValueError for NaN, infinity and nesting beyond 32 levels."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if isinstance(value, dict):
        return {key: plain_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item, depth + 1) for item in value]
    return value


JsonObject = Annotated[dict[str, JsonValue], BeforeValidator(plain_json)]
"""A free-form part of a message, with the same rules for numbers as everywhere else."""

FLEET = "_fleet"
"""Stands in the job token for messages about nodes rather than about one job."""


def new_id() -> str:
    """A fresh random identifier (UUID4, 32 hex digits): message ids, incarnations, correlation ids."""
    return uuid.uuid4().hex


class Wire(BaseModel):
    """Base of everything on a wire: frozen; unknown fields are ignored, so that adding an optional field keeps v1."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)
