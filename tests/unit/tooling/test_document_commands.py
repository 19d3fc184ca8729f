"""Commands that documents name exist, with the options that they are given; the API page names every request."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from fastapi.routing import APIRoute

from resihp_cli.app import app
from resihp_gateway import routes
from resihp_gateway.app import PREFIX

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted(
    p
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/results/*.md", "docs/*.md")
    for p in ROOT.glob(pattern)
    if p.name != "CHANGELOG.md"
)
CODE = re.compile(r"```[a-z]*\n(.*?)```|`([^`\n]+)`", re.S)
COMMAND = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(resihp [a-z].*)$")
MODULE = re.compile(r"python3? -m ((?:resihp|benchmarks|scripts)[\w.]*)")


def code(document: Path) -> Iterator[str]:
    """Lines of code blocks, and pieces of code in sentences; continued lines are joined."""
    for block, inline in CODE.findall(document.read_text()):
        yield from (block or inline).replace("\\\n", " ").splitlines()


def commands(document: Path) -> list[str]:
    return [found.group(1) for line in code(document) if (found := COMMAND.match(line.strip()))]


@functools.cache
def tree() -> click.Command:
    return typer.main.get_command(app)  # type: ignore[return-value]  # typer carries its own click


def objection(command: str) -> str | None:
    """What is wrong with a command line, as far as its words and options tell."""
    words = shlex.split(command.partition(" | ")[0].replace("...", ""), comments=True)[1:]
    here = tree()
    while isinstance(getattr(here, "commands", None), dict) and words and not words[0].startswith("-"):
        inner = here.commands.get(words.pop(0))  # type: ignore[attr-defined]
        if inner is None:
            return f"{command!r}: no such command"
        here = inner
    known = {option for parameter in here.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = words[: words.index("--")] if "--" in words else words
    if not here.context_settings.get("allow_interspersed_args", True):  # what follows the script is the script's
        given = list(itertools.takewhile(lambda w: not w.endswith(".py"), given))
    unknown = [w for w in given if w.startswith("--") and w.partition("=")[0] not in known | {"--help"}]
    return f"{command!r}: no option {unknown[0]}" if unknown else None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_exist(document: Path) -> None:
    assert [wrong for command in commands(document) if (wrong := objection(command))] == []


def test_enough_commands_are_found() -> None:
    """The search itself works."""
    assert len({c for d in DOCUMENTS for c in commands(d)}) > 60
    assert objection("resihp demo --kil 3@5") == "'resihp demo --kil 3@5': no option --kil"
    assert objection("resihp demonstrate") == "'resihp demonstrate': no such command"
    assert objection("resihp run -- torchrun --nproc-per-node 4 train.py") is None
    assert objection("resihp launch --nproc-per-node 4 train.py --steps 3") is None
    assert objection("resihp launch --steps 3 train.py") == "'resihp launch --steps 3 train.py': no option --steps"


def test_modules_exist() -> None:
    named = {m for d in DOCUMENTS for line in code(d) for m in MODULE.findall(line)}
    assert named
    assert [m for m in sorted(named) if importlib.util.find_spec(m) is None] == []


def test_the_api_page_names_every_request() -> None:
    page = set(re.findall(r"`((?:GET|POST) /\S+)`", (ROOT / "docs" / "api.md").read_text()))
    served = set()
    for found in pkgutil.iter_modules(routes.__path__):
        module = importlib.import_module(f"{routes.__name__}.{found.name}")
        prefix = "" if found.name in {"events", "asyncapi"} else PREFIX
        for route in module.router.routes:
            if isinstance(route, APIRoute):
                served |= {f"{method} {prefix}{route.path}" for method in route.methods}
    assert page == served
