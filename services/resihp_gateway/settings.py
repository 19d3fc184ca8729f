"""Settings of the gateway: environment `RESIHP_GATEWAY_*`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from resihp_chassis import ServiceSettings


class GatewaySettings(ServiceSettings):
    """Where the interface listens, and its patience."""

    model_config = SettingsConfigDict(env_prefix="RESIHP_GATEWAY_", frozen=True, extra="ignore")

    host: str = "127.0.0.1"
    """Interface of REST and events. Loopback unless told otherwise: there is no authentication yet."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8765
    """0 takes any free port, which is logged."""
    listen_fd: Annotated[int | None, Field(ge=3)] = None
    """An inherited, listening socket instead of `host` and `port`: a supervisor keeps it open over our restarts, so
    that clients queue instead of failing."""
    request_timeout_s: Annotated[float, Field(gt=0)] = 5.0
    """How long the scheduler's leader may take to answer; longer than a take-over of the lease."""
    heartbeat_s: Annotated[float, Field(gt=0)] = 4.0
    """A comment on every event stream after this silence; clients give up after three of them."""
    close_timeout_s: Annotated[float, Field(gt=0)] = 1.0
    """Requests in progress may take this long when the server stops."""
