"""Entry point of `resihp`: runs the command line and turns errors into one line and an exit code.

Exit codes: 0 it holds, 1 it ran but something asked for does not hold, 2 wrong use, bad input or unreachable part,
130 interrupted.
"""

from __future__ import annotations

import os
import sys

import typer

from resihp_cli.app import app
from resihp_cli.errors import CliError


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code (the console script passes it to `sys.exit`)."""
    try:
        code = app(args=argv, prog_name="resihp", standalone_mode=False)
    except CliError as error:
        return _fail(str(error))
    except typer.TyperException as error:
        return _fail(" ".join(_text(error).split()))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # `resihp events | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code if isinstance(code, int) else 0


def _text(error: typer.TyperException) -> str:
    formatted = getattr(error, "format_message", None)
    return str(formatted() if formatted else error)


def _fail(message: str) -> int:
    print(f"resihp: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
