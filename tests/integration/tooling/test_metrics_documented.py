"""docs/metrics.md lists exactly what the running services export."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from resihp_cli.run_folder import RunFolder, create
from resihp_cli.supervisor import Supervisor, SupervisorOptions

ROOT = Path(__file__).parents[3]
ROOMS = ("detector", "scheduler", "gateway", "agent")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("RESIHP_HOME", str(tmp_path / "home"))
    return create(datetime.now())


async def test_every_exported_metric_is_documented_and_every_documented_one_exported(folder: RunFolder) -> None:
    exported: dict[str, set[str]] = {}
    client = httpx.AsyncClient(trust_env=False, timeout=10.0)
    async with client, Supervisor(SupervisorOptions(num_devices=1, num_agents=1), folder):
        for announcement in sorted((folder.path / "announce").glob("*.json")):
            room = announcement.stem.partition("-")[0]
            url = json.loads(announcement.read_text())["health_url"]
            families = text_string_to_metric_families((await client.get(f"{url}/metrics")).text)
            names = {family.name for family in families}
            assert names, room
            exported.setdefault(room, set()).update(n for n in names if n.startswith("resihp_"))
    assert set(exported) == set(ROOMS)
    documented = set(re.findall(r"`(resihp_[a-z_]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    assert documented == set().union(*exported.values())
