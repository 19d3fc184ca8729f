"""What git tracks is source: nothing generated, nothing huge."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_nothing_tracked_is_generated_or_huge() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert files
    assert [f for f in files if f.exists() and f.stat().st_size > 1_000_000] == []
    assert [f for f in files if f.suffix in {".pyc", ".safetensors", ".pkl", ".pt"}] == []
