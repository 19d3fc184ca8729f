"""The one error that ends a command: a mistake of the caller or of the environment, told in one line."""

from __future__ import annotations


class CliError(Exception):
    """Wrong use, bad input or an unreachable part. Printed as one line on stderr; the exit code is 2."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
