"""Settings: where a value comes from, what is refused, what is shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError
from pydantic_settings import SettingsConfigDict

from resihp_bus import JetStreamSettings
from resihp_chassis import ServiceSettings, SettingsError, load_settings


class ToySettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="RESIHP_TOY_")

    speed: int = 3


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RESIHP_")]:
        monkeypatch.delenv(name)


def test_defaults_stay_on_this_machine() -> None:
    settings = load_settings(ToySettings)
    assert settings.health_host == "127.0.0.1"
    assert settings.bus.url == "nats://127.0.0.1:4222"
    assert settings.speed == 3


def test_room_before_fleet_before_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESIHP_LOG_LEVEL", "error")
    monkeypatch.setenv("RESIHP_DRAIN_TIMEOUT_S", "1.5")
    monkeypatch.setenv("RESIHP_TOY_LOG_LEVEL", "debug")
    monkeypatch.setenv("RESIHP_BUS_URL", "nats://one:1,nats://two:2")
    settings = load_settings(ToySettings)
    assert settings.log_level == "debug"
    assert settings.drain_timeout_s == 1.5
    assert settings.bus.servers == ["nats://one:1", "nats://two:2"]
    assert load_settings(ToySettings, log_level="warning").log_level == "warning"


def test_incarnation_is_fresh_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(ToySettings).incarnation != load_settings(ToySettings).incarnation
    monkeypatch.setenv("RESIHP_TOY_INCARNATION", "fixed")
    assert load_settings(ToySettings).incarnation == "fixed"


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        load_settings(ToySettings).speed = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RESIHP_TOY_SPEED", "fast"),
        ("RESIHP_TOY_HEALTH_PORT", "70000"),
        ("RESIHP_TOY_LOG_FORMAT", "xml"),
        ("RESIHP_TOY_DRAIN_TIMEOUT_S", "0"),
        ("RESIHP_TOY_INCARNATION", "a.b"),
        ("RESIHP_BUS_URL", "http://somewhere"),
        ("RESIHP_BUS_ACK_WAIT_S", "0"),
    ],
)
def test_a_wrong_value_is_one_line_with_its_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as wrong:
        load_settings(ToySettings)
    assert str(wrong.value).startswith(f"{name}: ")
    assert "\n" not in str(wrong.value)


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESIHP_BUS_URL", "nats://user:secret1@host:4222,nats://secret2@other:4222")
    monkeypatch.setenv("RESIHP_BUS_TOKEN", "secret3")
    monkeypatch.setenv("RESIHP_BUS_NKEY_SEED", "secret4")
    monkeypatch.setenv("RESIHP_DATABASE_URL", "postgresql+asyncpg://me:secret5@db/resihp")
    settings = load_settings(ToySettings)
    shown = repr(settings) + str(settings) + settings.bus.shown_url
    assert "secret" not in shown
    assert "host:4222" in shown
    assert "@db/resihp" in shown
    assert settings.database_url == "postgresql+asyncpg://me:secret5@db/resihp"


def test_a_wrong_url_does_not_show_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESIHP_BUS_URL", "http://me:secret@host")
    with pytest.raises(SettingsError) as wrong:
        load_settings(ToySettings)
    assert "secret" not in str(wrong.value)


def test_paths(tmp_path: Path) -> None:
    assert load_settings(ToySettings, announce_file=tmp_path / "a").announce_file == tmp_path / "a"


def test_bus_settings_alone() -> None:
    assert JetStreamSettings(url="nats://h:1").servers == ["nats://h:1"]
