"""An external bus with keys: taken from the environment, streams made as the scheduler, told in one line if wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from resihp_bus import JetStreamBus, KeyFolder, LocalNats
from resihp_cli import checks
from resihp_cli.__main__ import main
from resihp_cli.errors import CliError
from resihp_cli.topology import Addresses, check_bus
from support.nats import quick_settings, require_nats


async def test_the_environment_names_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_nats()
    keys = KeyFolder(tmp_path / "keys")
    keys.init(["n0"])
    with LocalNats(tmp_path / "nats", include=keys.config) as server:
        with pytest.raises(CliError, match=r"(?i)^bus: .*authorization"):
            await check_bus(server.url)
        monkeypatch.setenv("RESIHP_BUS_KEYS", str(keys.path))
        monkeypatch.setenv("RESIHP_BUS_PROVISION", "false")
        addresses = Addresses(server.url, "", await check_bus(server.url))
        assert addresses.bus()["RESIHP_BUS_PROVISION"] == "false"
        assert addresses.bus(makes_streams=True)["RESIHP_BUS_PROVISION"] == "true"
        agent = JetStreamBus(quick_settings(server.url, keys=addresses.keys, provision=False), "agent-n0")
        await agent.connect()  # the streams are there
        await agent.close()


async def test_doctor_comes_as_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require_nats()
    folder = tmp_path / "keys"
    assert main(["keys", "init", "--dir", str(folder), "--agent", "n0"]) == 0
    assert "agent-n0" in capsys.readouterr().out
    monkeypatch.setenv("RESIHP_BUS_KEYS", str(folder))
    with LocalNats(tmp_path / "nats", include=KeyFolder(folder).config) as server:
        await check_bus(server.url)
        assert await checks._bus(server.url) == checks.Check("bus", True, f"{server.url} answers")
        monkeypatch.delenv("RESIHP_BUS_KEYS")
        assert not (await checks._bus(server.url)).ok
        assert (await checks._bus(server.url, folder)).ok  # of a local run
