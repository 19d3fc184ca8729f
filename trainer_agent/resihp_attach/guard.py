"""The border between our code and somebody else's job: nothing that we raise crosses it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

MAX_FAILURES = 3
"""A part that failed this often is switched off: what fails on every step costs time and tells nothing."""


class Guard:
    """Calls parts by name; a part that raises says so once on stderr, and returns None.

    >>> guard = Guard(say=lambda text: None)
    >>> @guard("broken part")
    ... def broken() -> int:
    ...     return 1 // 0
    >>> [broken() for _ in range(5)], guard.failures
    ([None, None, None, None, None], {'broken part': 3})
    """

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self.failures: dict[str, int] = {}
        self._say = say or warn

    def __call__(self, part: str) -> Callable[[F], F]:
        def decorate(function: F) -> F:
            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                if self.failures.get(part, 0) >= MAX_FAILURES:
                    return None
                try:
                    return function(*args, **kwargs)
                except Exception as error:  # this is the border
                    self.failed(part, error)
                    return None

            vars(call)["_torchdynamo_disable"] = True  # no part of a compiled model: hooks/compiled.py
            return cast(F, call)

        return decorate

    def failed(self, part: str, error: BaseException) -> None:
        """Count a failure; the first one of a part is said."""
        self.failures[part] = self.failures.get(part, 0) + 1
        if self.failures[part] == 1:
            self._say(f"{part}: {type(error).__name__}: {error}"[:500])


def warn(text: str) -> None:
    """One line on stderr. A job without a stderr is no reason to fail."""
    try:
        print(f"resihp: {text} (training goes on unobserved in this respect)", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return


guard = Guard()
"""Of this process."""
