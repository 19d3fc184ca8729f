"""Settings that every service shares. Each room subclasses `ServiceSettings` with its own prefix.

A field is read from `RESIHP_<ROOM>_<FIELD>`, else from `RESIHP_<FIELD>`: what holds for the whole fleet is said once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from resihp_bus.settings import JetStreamSettings, mask_url
from resihp_chassis.errors import SettingsError
from resihp_messages.ids import Token, new_id

COMMON_PREFIX = "RESIHP_"


class ServiceSettings(BaseSettings):
    """Frozen; addresses default to loopback; secrets are masked when printed.

    A room writes `class DetectorSettings(ServiceSettings)` with
    `model_config = SettingsConfigDict(env_prefix="RESIHP_DETECTOR_")` and adds its fields.
    """

    model_config = SettingsConfigDict(env_prefix=COMMON_PREFIX, frozen=True, extra="ignore")

    bus: JetStreamSettings = Field(default_factory=JetStreamSettings)
    """The message bus: `RESIHP_BUS_URL` and the other variables of `JetStreamSettings`."""
    database_url: str = "sqlite+aiosqlite:///.resihp/resihp.db"
    """SQLAlchemy URL of the database; only scheduler and gateway use it."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "json"
    """`json`: one object per line; `console`: for people."""
    health_host: str = "127.0.0.1"
    """Interface of /livez, /readyz and /metrics. Loopback unless told otherwise: they need no authentication."""
    health_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0 takes any free port, which is logged and written to `announce_file`."""
    announce_file: Path | None = None
    """Where the running process writes its pid, incarnation and health URL (JSON), for a supervisor."""
    drain_timeout_s: Annotated[float, Field(gt=0)] = 5.0
    """After SIGTERM, work in progress may take this long."""
    stuck_after_s: Annotated[float, Field(gt=0)] = 5.0
    """/livez fails if the main loop did not turn for this long."""
    incarnation: Token = Field(default_factory=new_id)
    """Fresh per process start, unless given."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, EnvSettingsSource(settings_cls, env_prefix=COMMON_PREFIX)

    def __repr_args__(self) -> list[tuple[str | None, object]]:
        return [(k, mask_url(self.database_url) if k == "database_url" else v) for k, v in super().__repr_args__()]


S = TypeVar("S", bound=ServiceSettings)


def load_settings(settings_class: type[S], **overrides: Any) -> S:
    """Read the environment once. Raises `SettingsError`: one line with the variable and its rule, no secret."""
    try:
        return settings_class(**overrides)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        prefix = (
            "RESIHP_BUS_" if error.title == JetStreamSettings.__name__ else settings_class.model_config["env_prefix"]
        )
        name = prefix + "_".join(str(part) for part in first["loc"]).upper()
        raise SettingsError(f"{name}: {first['msg']}") from error
