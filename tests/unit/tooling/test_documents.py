"""Documents are true where a machine can tell: links lead somewhere, named targets exist, examples are valid."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from resihp_messages import JobSpec
from resihp_plan import ParallelPlan

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted(
    p for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "benchmarks/**/*.md") for p in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
MAKE = re.compile(r"\bmake ([a-z-]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = [t for t in LINK.findall(document.read_text()) if "://" not in t]
    missing = [t for t in targets if not (document.parent / t).exists()]
    assert missing == []


def test_make_targets_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    fences = [f for d in DOCUMENTS for f in re.findall(r"```.*?```|`[^`\n]+`", d.read_text(), re.S)]
    named = {name for fence in fences for name in MAKE.findall(fence)}
    assert {"demo", "test", "check"} <= named
    assert named <= targets, named - targets


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.name)
def test_example_jobs_are_valid(path: Path) -> None:
    spec = JobSpec.model_validate(tomllib.loads(path.read_text()))
    assert spec.parallel.num_devices == 8


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.json")), ids=lambda p: p.name)
def test_example_plans_are_plans(path: Path) -> None:
    plan = ParallelPlan.from_dict(json.loads(path.read_text()))
    assert plan.world == tuple(range(8))
