"""The examples are ordinary scripts: what our part adds to each is at most ten lines, and it can be taken out."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "attach"
ADDED = {
    "plain_ddp.py": 0, "fsdp2.py": 0, "deepspeed_zero.py": 0, "megatron_core.py": 0, "hf_trainer.py": 2,
    "lightning_ddp.py": 2, "accelerate_loop.py": 2,
}  # fmt: skip


@pytest.mark.parametrize("example", ADDED)
def test_what_is_added_is_counted_and_can_be_taken_out(example: str) -> None:
    text = (EXAMPLES / example).read_text()
    tree = ast.parse(text)
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("resihp")]
    assert not any(a.name.startswith("resihp") for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names)
    names = {alias.asname or alias.name for statement in imports for alias in statement.names}
    uses = {n.lineno for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in names}
    ours = uses | {line for n in imports for line in range(n.lineno, (n.end_lineno or n.lineno) + 1)}
    assert len(ours) == ADDED[example] <= 10
    rest = "\n".join(line for number, line in enumerate(text.splitlines(), 1) if number not in ours)
    assert not {n.id for n in ast.walk(ast.parse(rest)) if isinstance(n, ast.Name)} & names
