"""How to reach the message bus: environment `RESIHP_BUS_*`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class JetStreamSettings(BaseSettings):
    """Connection and delivery settings of `JetStreamBus`. Frozen; secrets are masked when printed."""

    model_config = SettingsConfigDict(env_prefix="RESIHP_BUS_", frozen=True, extra="ignore")

    url: str = "nats://127.0.0.1:4222"
    """Servers, separated by commas. A user, password or token may be part of each."""
    token: SecretStr | None = None
    """Shared token of the server, if it asks for one."""
    nkey_seed: SecretStr | None = None
    """Seed of this process's nkey (`SU...`)."""
    credentials: str | None = None
    """Path of a NATS `.creds` file (JWT and seed)."""
    keys: Path | None = None
    """Folder of `resihp keys init`: a process takes the seed (and the CA, if any) in the sub-folder of its name."""
    tls_ca: Path | None = None
    """Certificates (PEM) to trust; the server must speak TLS then. Default: `ca.pem` beside the seed, if any."""
    connect_timeout_s: Annotated[float, Field(gt=0)] = 5.0
    """`connect` gives up after this long; once connected, reconnection never gives up."""
    reconnect_wait_s: Annotated[float, Field(gt=0)] = 0.2
    ping_interval_s: Annotated[float, Field(gt=0)] = 5.0
    """A server that answers no ping for two to three intervals counts as gone (half-open connections)."""
    api_timeout_s: Annotated[float, Field(gt=0)] = 2.0
    """One request to the server's own interface (stream and consumer management)."""
    publish_attempt_s: Annotated[float, Field(gt=0)] = 1.0
    """Wait for one publish acknowledgement before the same message id is sent again."""
    ack_wait_s: Annotated[float, Field(ge=0.1)] = 2.0
    """A delivered message without an acknowledgement or a sign of work for this long is delivered again."""
    max_tries: Annotated[int, Field(ge=1)] = 10
    """Handler exceptions per message before it is rejected (an explicit `Retry` never runs out)."""
    outbound_limit: Annotated[int, Field(ge=1)] = 4096
    """Messages that `publish_soon` holds while the connection is down; the oldest are dropped first."""
    pending_bytes: Annotated[int, Field(ge=1 << 16)] = 8 << 20
    """Bytes that the client buffers for a connection that is down."""
    duplicate_window_s: Annotated[float, Field(ge=120)] = 600.0
    """The server recognises a repeated message id for this long: longer than any outage of a sender."""
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    """Copies of each stream in a server cluster."""
    provision: bool = True
    """Create and update streams. False for identities without that permission: `connect` waits until they exist."""

    @field_validator("keys", "tls_ca")
    @classmethod
    def _there(cls, value: Path | None) -> Path | None:
        if value is not None and not value.exists():
            raise ValueError(f"{value} does not exist")
        return value

    @field_validator("url")
    @classmethod
    def _servers(cls, value: str) -> str:
        for server in value.split(","):
            parts = urlsplit(server.strip())
            if parts.scheme not in ("nats", "tls", "ws", "wss") or not parts.hostname:
                raise ValueError(f"not a bus URL: {mask_url(server)!r} (expected nats://host:port)")
        return value

    @property
    def servers(self) -> list[str]:
        return [server.strip() for server in self.url.split(",")]

    @property
    def shown_url(self) -> str:
        """The URL without secrets, for logs and error lines."""
        return ",".join(mask_url(server) for server in self.servers)

    def __repr_args__(self) -> list[tuple[str | None, object]]:
        return [(k, self.shown_url if k == "url" else v) for k, v in super().__repr_args__()]


def mask_url(url: str) -> str:
    """Replace the user information of a URL by `***`."""
    parts = urlsplit(url.strip())
    if "@" not in parts.netloc:
        return url.strip()
    return urlunsplit(parts._replace(netloc="***@" + parts.netloc.rpartition("@")[2]))
