"""The import rules of docs/architecture.md catch what they forbid.

One forbidden import per rule is planted in a copy of the tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONTAINERS = ("libs", "services", "trainer_agent")

# rule -> (package that breaks it, module that it may not import)
FORBIDDEN = {
    "Rooms are layered (docs/architecture.md)": ("resihp_gateway", "resihp_scheduler"),
    "messages, plan import nothing of ours": ("resihp_messages", "resihp_plan"),
    "The trainer knows no bus, store or chassis": ("resihp_trainer", "resihp_chassis"),
    "The client inside other people's jobs needs no room and no package": ("resihp_attach", "resihp_messages"),
    "Only the bus imports nats": ("resihp_detector", "nats"),
    "Only the store imports sqlalchemy and alembic": ("resihp_scheduler", "sqlalchemy"),
    "Only the trainer imports torch": ("resihp_agent", "torch"),
    "Only the detect room imports river": ("resihp_detector", "river"),
    "The detector and the agent know no database": ("resihp_agent", "resihp_store"),
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What import-linter says about a copy of the tree in which every rule is broken once."""
    tree = tmp_path_factory.mktemp("tree")
    for container in CONTAINERS:
        shutil.copytree(ROOT / container, tree / container, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    for number, (package, module) in enumerate(FORBIDDEN.values()):
        (folder,) = tree.glob(f"*/{package}")
        (folder / f"planted_{number}.py").write_text(f"import {module}\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        check=False,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(tree / c) for c in CONTAINERS), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_every_rule_has_a_planted_violation() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {c["name"] for c in config["tool"]["importlinter"]["contracts"]} == set(FORBIDDEN)


@pytest.mark.parametrize("rule", FORBIDDEN)
def test_a_forbidden_import_is_found(report: str, rule: str) -> None:
    number = list(FORBIDDEN).index(rule)
    package, module = FORBIDDEN[rule]
    details = report.split("Broken contracts", 1)[1].split(rule, 1)
    assert len(details) == 2, f"{rule!r} is not reported as broken:\n{report}"
    assert f"{package}.planted_{number} -> {module}" in details[1]


def test_every_package_of_the_tree_is_under_the_rules() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {p.parent.name for c in CONTAINERS for p in (ROOT / c).glob("*/__init__.py")}
    assert packages == set(config["tool"]["importlinter"]["root_packages"])
