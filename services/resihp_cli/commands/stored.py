"""The database of a run, read directly: what `history` and `events` show must not depend on a running system."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from resihp_cli.errors import CliError
from resihp_cli.run_folder import find
from resihp_store import Store, StoreError
from resihp_store.queries import Connection


def database_url(url: str | None, run: str | None) -> str:
    """The given database, or that of the named or newest run. Raises `CliError`."""
    return url if url is not None else find(run).read().database_url


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[Connection]:
    """A connection for `queries`. Raises `CliError` with one line if the database cannot be read."""
    try:
        store = Store(url)
        try:
            await store.open()
            async with store.read() as connection:
                yield connection
        finally:
            await store.close()
    except StoreError as error:
        raise CliError(str(error)) from error
