"""What every event is."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from resihp_messages.envelope import Body, Kind

Fraction = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]


class _Event(Body):
    kind: ClassVar[Kind] = Kind.EVENT
