"""Who may do what: bearer tokens with a role each. Only their SHA-256 is kept, in a JSON file that the CLI writes.

A token is 32 random bytes, so a plain digest is enough: there is nothing to guess. The file is read again when it
changes, so that a revoked token stops working without a restart.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from resihp_gateway.problems import ApiError

PREFIX = "rhp_"
ANONYMOUS = "anonymous"


class Role(StrEnum):
    """Each includes the ones before it."""

    VIEW = "view"
    """Read everything, ask what-if questions."""
    OPERATE = "operate"
    """Also: plans, modes, approvals, restarts, stops, new jobs."""
    ADMIN = "admin"
    """Also: inflict faults."""

    def includes(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True)
class Identity:
    """Who asks."""

    name: str
    role: Role
    client: str = ""
    """Address of the other end of the connection."""


@dataclass(frozen=True)
class TokenEntry:
    """A line of the token file."""

    name: str
    role: Role
    sha256: str
    created_at: str


class TokenFile:
    """The file, for the CLI that writes it and the gateway that reads it. Raises `ValueError` for a broken one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[TokenEntry, ...]:
        """Nothing if there is no file."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            return tuple(TokenEntry(**{**entry, "role": Role(entry["role"])}) for entry in data["tokens"])
        except FileNotFoundError:
            return ()
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise ValueError(f"{self.path}: not a token file: {error}") from error

    def create(self, name: str, role: Role, now: datetime) -> str:
        """Add a token and return it: the only time that it can be seen. Raises `ValueError` for a name in use."""
        known = self.read()
        if name == ANONYMOUS or any(entry.name == name for entry in known):
            raise ValueError(f"there is a token named {name!r} already")
        token = PREFIX + secrets.token_urlsafe(32)
        self._write((*known, TokenEntry(name, role, digest(token), now.isoformat(timespec="seconds"))))
        return token

    def revoke(self, name: str) -> None:
        """Raises `ValueError` if there is no such token."""
        known = self.read()
        kept = tuple(entry for entry in known if entry.name != name)
        if len(kept) == len(known):
            raise ValueError(f"there is no token named {name!r}")
        self._write(kept)

    def _write(self, entries: tuple[TokenEntry, ...]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.draft")
        draft.touch(mode=0o600)
        draft.write_text(json.dumps({"tokens": [asdict(e) for e in entries]}, indent=2) + "\n", encoding="utf-8")
        draft.replace(self.path)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Access:
    """Decides who asks. `anonymous` is the role of requests without a token; None refuses them."""

    def __init__(self, file: TokenFile | None, anonymous: Role | None) -> None:
        self._file = file
        self._anonymous = anonymous
        self._stamp: tuple[int, int] | None = None
        self._known: Mapping[str, TokenEntry] = {}

    @property
    def asks_for_tokens(self) -> bool:
        return self._anonymous is None

    def identify(self, token: str | None, client: str) -> Identity:
        """Raises `ApiError` 401 for an unknown or missing token."""
        if token is None:
            if self._anonymous is None:
                raise ApiError(401, "this gateway asks for a bearer token: `resihp token create NAME`")
            return Identity(ANONYMOUS, self._anonymous, client)
        self._reload()
        entry = self._known.get(digest(token))
        if entry is None:
            raise ApiError(401, "this bearer token is not known (any more)")
        return Identity(entry.name, entry.role, client)

    def _reload(self) -> None:
        if self._file is None:
            return
        try:
            facts = self._file.path.stat()
        except OSError:
            self._stamp, self._known = None, {}
            return
        stamp = (facts.st_mtime_ns, facts.st_size)
        if stamp != self._stamp:
            try:
                self._known = {entry.sha256: entry for entry in self._file.read()}
            except ValueError as error:
                raise ApiError(503, str(error)) from error
            self._stamp = stamp


_bearer = HTTPBearer(auto_error=False, description="From `resihp token create`; loopback may need none.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


def needs(role: Role) -> Callable[[Request, HTTPAuthorizationCredentials | None], Identity]:
    """A dependency: who asks, or 401, or 403 if the role is too small."""

    def identify(request: Request, credentials: Credentials = None) -> Identity:
        access = request.app.state.access
        assert isinstance(access, Access)
        client = request.client.host if request.client else ""
        found = access.identify(credentials.credentials if credentials else None, client)
        if not found.role.includes(role):
            raise ApiError(403, f"this needs the role {role}; {found.name} has {found.role}")
        return found

    return identify


def _dependency(role: Role) -> object:
    return Security(needs(role))


Viewer = Annotated[Identity, _dependency(Role.VIEW)]
Operator = Annotated[Identity, _dependency(Role.OPERATE)]
Admin = Annotated[Identity, _dependency(Role.ADMIN)]
