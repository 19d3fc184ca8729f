"""deploy/prometheus and deploy/grafana: the rules work, and everything they ask for is exported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
SUFFIXES = r"_(total|bucket|count|sum)$"


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("no promtool on the PATH (Debian: apt-get install prometheus)")
    return subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", "alerts.yml"), ("check", "config", "prometheus.yml"), ("test", "rules", "alerts.test.yml")],
)
def test_promtool_accepts(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def known() -> set[str]:
    text = (ROOT / "docs" / "metrics.md").read_text()
    found = set(re.findall(r"`(resihp_[a-z_<>]+)`", text))
    return {name.replace("<room>", room) for name in found for room in ("agent", "detector", "scheduler", "gateway")}


def unknown(text: str) -> set[str]:
    asked = set(re.findall(r"\bresihp_[a-z_]+", text))
    names = known()
    return {a for a in asked if a not in names and re.sub(SUFFIXES, "", a) not in names}


def test_everything_asked_for_is_documented_and_so_exported() -> None:
    assert unknown((PROMETHEUS / "alerts.yml").read_text()) == set()
    dashboard: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "resihp.json").read_text())
    expressions = " ".join(t["expr"] for panel in dashboard["panels"] for t in panel["targets"])
    assert unknown(expressions) == set()
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in dashboard["panels"]}
    assert len(places) == len(dashboard["panels"])


def test_every_alert_has_a_runbook() -> None:
    alerts = re.findall(r"alert: (\w+)", (PROMETHEUS / "alerts.yml").read_text())
    runbooks = (ROOT / "docs" / "runbooks.md").read_text()
    assert [alert for alert in alerts if alert not in runbooks] == []
