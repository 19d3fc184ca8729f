"""Errors of this room.

`StoreError` <- `BadDatabaseUrl`, `StoreUnavailable`, `LeadershipLost`, `SchemaMismatch` (`SchemaBehind`, `SchemaAhead`)
"""

from __future__ import annotations


class StoreError(Exception):
    """Root of this room's errors; the text is one clear line."""


class BadDatabaseUrl(StoreError):
    """The URL has no form that we support."""


class StoreUnavailable(StoreError):
    """The database did not answer, or is locked for longer than the busy timeout: try again."""


class SchemaMismatch(StoreError):
    """The database's revision is not the one that this program was built for."""


class SchemaBehind(SchemaMismatch):
    """The database is older (or empty): migrate it."""


class SchemaAhead(SchemaMismatch):
    """The database was migrated by a newer program: update this one."""


class LeadershipLost(StoreError):
    """Another process holds the lease with a greater fencing token; nothing was written."""
