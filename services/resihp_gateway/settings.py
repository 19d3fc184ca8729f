"""Settings of the gateway: environment `RESIHP_GATEWAY_*`."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from resihp_chassis import ServiceSettings
from resihp_gateway.access import Role


class GatewaySettings(ServiceSettings):
    """Where the interface listens, and its patience."""

    model_config = SettingsConfigDict(env_prefix="RESIHP_GATEWAY_", frozen=True, extra="ignore")

    host: str = "127.0.0.1"
    """Interface of REST, events and dashboard. Elsewhere than on loopback the gateway starts only with `tokens_file` or
    an explicit `anonymous`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8765
    """0 takes any free port, which is logged."""
    listen_fd: Annotated[int | None, Field(ge=3)] = None
    """An inherited, listening socket instead of `host` and `port`: a supervisor keeps it open over our restarts, so
    that clients queue instead of failing."""
    request_timeout_s: Annotated[float, Field(gt=0)] = 5.0
    """How long the scheduler's leader may take to answer; longer than a take-over of the lease."""
    heartbeat_s: Annotated[float, Field(gt=0)] = 4.0
    """A comment on every event stream after this silence; clients give up after three of them."""
    tokens_file: Path | None = None
    """Written by `resihp token create`: names, roles and digests. With it every request needs a token, unless
    `anonymous` says otherwise."""
    anonymous: Role | None = None
    """What requests without a token may do. Unset: everything on loopback without `tokens_file`, else nothing."""
    write_rate_per_s: Annotated[float, Field(gt=0)] = 5.0
    """Writes of one client over a longer time."""
    write_burst: Annotated[int, Field(ge=1)] = 50
    """Writes of one client at once."""
    whatif_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """A what-if question may compute this long, in a process of its own."""
    webhooks_file: Path | None = None
    """TOML with the webhooks to call (docs/webhooks.md). None: no webhooks."""
    close_timeout_s: Annotated[float, Field(gt=0)] = 1.0
    """Requests in progress may take this long when the server stops."""

    @property
    def anonymous_role(self) -> Role | None:
        """Of requests without a token; None refuses them. Raises ValueError if nobody decided about it."""
        if self.anonymous is not None:
            return self.anonymous
        if self.tokens_file is not None:
            return None
        if not _is_loopback(self.host):
            raise ValueError(
                f"RESIHP_GATEWAY_HOST {self.host} is not loopback: set RESIHP_GATEWAY_TOKENS_FILE "
                "(`resihp token create`), or RESIHP_GATEWAY_ANONYMOUS to what everybody there may do"
            )
        return Role.ADMIN


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
