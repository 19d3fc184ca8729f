"""The one-shot program that brings a database to the newest revision: `python -m resihp_store.migrate --url URL`.

Exit status: 0 done (or up to date already), 2 with one clear line otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from resihp_store.engine import describe, parse_url
from resihp_store.errors import StoreError
from resihp_store.revisions import check_revision, head_revision, upgrade


def main(arguments: list[str] | None = None) -> int:
    """Entry point; the database may also come from RESIHP_DATABASE_URL."""
    parser = argparse.ArgumentParser(
        prog="python -m resihp_store.migrate",
        description="Bring the database to the newest revision.",
        epilog="example: python -m resihp_store.migrate --url sqlite+aiosqlite:///resihp.db",
    )
    default = os.environ.get("RESIHP_DATABASE_URL", "")
    parser.add_argument("--url", default=default, help="database URL (default: RESIHP_DATABASE_URL)")
    parser.add_argument("--check", action="store_true", help="only compare revisions; change nothing")
    given = parser.parse_args(arguments)
    if not given.url:
        parser.error("no database: give --url or set RESIHP_DATABASE_URL")
    try:
        if given.check:
            asyncio.run(check_revision(given.url))
        else:
            asyncio.run(upgrade(given.url))
    except StoreError as error:
        print(f"resihp-migrate: {error}", file=sys.stderr)
        return 2
    print(f"{describe(parse_url(given.url))} is at revision {head_revision()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
