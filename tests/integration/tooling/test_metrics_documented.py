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


def names(text: str, room: str) -> set[str]:
    """Our metrics in Prometheus' text; `_created` goes with every counter, and all rooms have the bus's."""
    found = {family.name for family in text_string_to_metric_families(text)}
    ours = {name for name in found if name.startswith("resihp_") and not name.endswith("_created")}
    return {name.replace(f"resihp_{room}_bus_", "resihp_<room>_bus_") for name in ours}


async def test_every_exported_metric_is_documented_and_every_documented_one_exported(folder: RunFolder) -> None:
    exported: dict[str, set[str]] = {}
    client = httpx.AsyncClient(trust_env=False, timeout=120)
    async with client, Supervisor(SupervisorOptions(num_devices=1, num_agents=1), folder):
        for announcement in sorted((folder.path / "announce").glob("*.json")):
            room = announcement.stem.partition("-")[0]
            url = json.loads(announcement.read_text())["health_url"]
            exported[room] = names((await client.get(f"{url}/metrics")).text, room)
    assert set(exported) == set(ROOMS)
    documented = set(re.findall(r"`(resihp_[a-z_<>]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    documented.discard("resihp_<room>_<what>_<unit>")
    assert documented == set().union(*exported.values())
