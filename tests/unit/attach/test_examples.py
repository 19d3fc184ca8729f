"""The examples are ordinary scripts: taken out again, our part is a difference of at most ten lines, as git counts."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "attach"
ADDED = {
    "plain_ddp.py": 0, "fsdp2.py": 0, "deepspeed_zero.py": 0, "megatron_core.py": 0, "hf_trainer.py": 2,
    "lightning_ddp.py": 2, "accelerate_loop.py": 2,
}  # fmt: skip


def unattached(text: str) -> str:
    """The example without the lines that import from us or use what was imported."""
    tree = ast.parse(text)
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("resihp")]
    names = {alias.asname or alias.name for statement in imports for alias in statement.names}
    uses = {n.lineno for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in names}
    ours = uses | {line for n in imports for line in range(n.lineno, (n.end_lineno or n.lineno) + 1)}
    return "".join(line for number, line in enumerate(text.splitlines(keepends=True), 1) if number not in ours)


def names_of_ours(text: str) -> list[str]:
    """What a script still imports from us."""
    modules = [n.module or "" for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)]
    modules += [a.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import) for a in n.names]
    return [name for name in modules if name.startswith("resihp")]


@pytest.mark.parametrize("example", ADDED)
def test_the_difference_to_the_unattached_script_is_counted_by_git(example: str, tmp_path: Path) -> None:
    attached, before = EXAMPLES / example, tmp_path / example
    before.write_text(unattached(attached.read_text()))
    assert names_of_ours(before.read_text()) == []
    command = ["git", "diff", "--no-index", "--numstat", str(before), str(attached)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: they differ
    added, removed, *_ = done.stdout.split() or ("0", "0")
    assert (int(added), int(removed)) == (ADDED[example], 0)
    assert ADDED[example] <= 10


def test_every_example_for_the_watcher_is_counted() -> None:
    own_launcher = {"launch_ddp.py"}  # `resihp launch`: another way to write the loop, not an addition to one
    assert {file.name for file in EXAMPLES.glob("*.py")} - own_launcher == set(ADDED)
