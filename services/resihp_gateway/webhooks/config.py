"""The webhooks file (TOML): whom to tell what."""

from __future__ import annotations

import os
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import httpx
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from resihp_gateway.wording import ALARMS, GOOD
from resihp_messages import Kind
from resihp_messages.envelope import Body
from resihp_messages.ids import Token

DEFAULT_EVENTS = frozenset({*ALARMS, *GOOD, "ReconfigurationSuperseded"})


class Format(StrEnum):
    GENERIC = "generic"
    """The event as JSON, as `/events` shows it, with a sentence for people."""
    SLACK = "slack"
    """A body that Slack's incoming webhooks take (and those who speak like them)."""


class Webhook(BaseModel):
    """One receiver."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Token
    url: str
    format: Format = Format.GENERIC
    secret: SecretStr | None = None
    """`whsec_` and base64, or any text of 16 characters or more. None: unsigned."""
    secret_env: str | None = None
    """Read the secret from this variable of the environment instead."""
    events: frozenset[str] = DEFAULT_EVENTS
    """Names of events. Default: failures, and how they were answered."""
    job: Token | None = None
    """Only this job."""
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 10.0
    max_age_s: Annotated[float, Field(gt=0)] = 3600.0
    """An event that could not be delivered for this long is given up; older ones are never begun."""

    @field_validator("url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("expected http:// or https://")
        try:
            url = httpx.URL(value)
        except httpx.InvalidURL as error:
            raise ValueError(f"not a URL: {error}") from error
        if not url.host:
            raise ValueError("the URL names no host")
        if url.port is not None and not 0 < url.port < 2**16:
            raise ValueError(f"no such port: {url.port}")
        return value

    @field_validator("events")
    @classmethod
    def _known(cls, value: frozenset[str]) -> frozenset[str]:
        known = {n.partition(".")[0] for n, body in Body.registry.items() if body.kind is Kind.EVENT}
        if unknown := sorted(value - known):
            raise ValueError(f"unknown event {unknown[0]}; see docs/messages.md")
        return value

    @model_validator(mode="after")
    def _secret(self) -> Webhook:
        if self.secret is not None and self.secret_env is not None:
            raise ValueError("secret and secret_env exclude each other")
        if self.secret_env is not None and self.secret_env not in os.environ:
            raise ValueError(f"the variable {self.secret_env} is not set")
        key = self.key
        if key is not None and len(key) < 16:
            raise ValueError("a secret needs 16 characters or more")
        return self

    @property
    def key(self) -> str | None:
        """The secret, wherever it comes from."""
        if self.secret_env is not None:
            return os.environ[self.secret_env]
        return self.secret.get_secret_value() if self.secret is not None else None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    webhook: tuple[Webhook, ...] = ()


def load(path: Path) -> tuple[Webhook, ...]:
    """Raises ValueError with the place and the rule for a missing or wrong file."""
    try:
        found = _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8"))).webhook
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}") from error
    names = [hook.name for hook in found]
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: two webhooks have the same name")
    return found
