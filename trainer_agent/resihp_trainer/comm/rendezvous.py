"""The store through which the ranks of an epoch find each other, as seen by one rank: every wait can be aborted.

A rank remembers the keys it set and deletes them when it retires the epoch.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store  # typed here; `torch.distributed` re-exports it

from resihp_messages import pack, unpack
from resihp_messages.link import HEADER, payload_length

SLICE_S = 0.02
"""How long a wait may miss an abort."""


class StoreClient:
    """One connection to a store (`resihp_trainer.store`), used by one thread at a time.

    `check` is called at least every 20 ms of a wait; what it raises leaves the wait. The connection, out of step then,
    is closed. ConnectionError or TimeoutError if the store is gone or does not answer within `timeout_s`.
    """

    def __init__(self, address: str, *, timeout_s: float, check: Callable[[], None] = lambda: None) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"store address {address!r} is not host:port")
        self._timeout_s = timeout_s
        self._check = check
        self._sock = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.settimeout(SLICE_S)
        self._owed = 0
        """Answers that nobody has waited for yet."""

    def set(self, key: str, value: bytes) -> None:
        self._request(["set", key, value])

    def post(self, key: str, value: bytes) -> None:
        """`set` without a wait: the answer is read before that of the next request."""
        self._send(["set", key, value])
        self._owed += 1

    def get(self, keys: list[str], *, timeout_s: float) -> list[bytes]:
        """Values of all `keys`, once they are all there. TimeoutError after `timeout_s`."""
        found: list[bytes] = self._request(["get", keys], timeout_s)
        return found

    def check(self, keys: list[str]) -> bool:
        return bool(self._request(["check", keys]))

    def add(self, key: str, number: int) -> int:
        return int(self._request(["add", key, number]))

    def delete(self, keys: list[str]) -> int:
        return int(self._request(["delete", keys]))

    def count(self) -> int:
        """How many keys the store holds, of all its users."""
        return int(self._request(["count"]))

    def close(self) -> None:
        self._sock.close()

    def _request(self, request: list[Any], timeout_s: float | None = None) -> Any:
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        self._send(request)
        try:
            while self._owed:
                self._answer(deadline)
                self._owed -= 1
            return self._answer(deadline)
        except BaseException:
            self._sock.close()
            raise

    def _send(self, request: list[Any]) -> None:
        self._check()
        raw = pack(request)
        try:
            self._sock.sendall(HEADER.pack(len(raw)) + raw)
        except BaseException:
            self._sock.close()
            raise

    def _answer(self, deadline: float) -> Any:
        return unpack(self._receive(payload_length(self._receive(HEADER.size, deadline)), deadline))

    def _receive(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._check()
            try:
                chunk = self._sock.recv(size - len(data))
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise TimeoutError("the store, or the peers expected there, did not answer in time") from None
                continue
            if not chunk:
                raise ConnectionError("the store closed the connection")
            data += chunk
        return bytes(data)


class AbortableStore(Store):
    """A torch store over a `StoreClient`, for the constructors of backends. `timeout_s` bounds the wait for peers.

    The backend calls it from C++; keep a reference to the Python object as long as the backend is being constructed, or
    its methods are no longer found.
    """

    def __init__(self, client: StoreClient, timeout_s: float) -> None:
        super().__init__()
        self._client = client
        self._timeout_s = timeout_s
        self._fetched: dict[str, bytes] = {}
        self._expected = 0
        self.keys_set: list[str] = []

    def expect(self, num_ranks: int) -> None:
        """A gloo group of that many ranks is constructed next. Each sets `.../RANK` and then reads those of all, one
        after the other: they are fetched together, and its own comes from here."""
        self._fetched.clear()
        self._expected = num_ranks

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]  # torch passes bytes, its stub says str
        if self._expected:
            self._fetched[key] = value
            self._client.post(key, value)
        else:
            self._client.set(key, value)
        self.keys_set.append(key)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._fetched.pop(key)

    def add(self, key: str, value: int) -> int:
        self.keys_set.append(key)
        return self._client.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self._client.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Values come with the wait: torch reads each key once, right after it waited for it."""
        missing = [key for key in keys if key not in self._fetched]
        if missing:
            missing = self._group_of(missing)
            limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
            self._fetched.update(zip(missing, self._client.get(missing, timeout_s=limit_s), strict=True))

    def _group_of(self, keys: list[str]) -> list[str]:
        """`keys`, or if that is the key of one rank of an expected group, those of all its ranks not known yet."""
        stem, _, rank = keys[0].rpartition("/")
        if not self._expected or len(keys) > 1 or not rank.isdigit():
            return keys
        return [key for r in range(self._expected) if (key := f"{stem}/{r}") not in self._fetched]


def delete_keys(address: str, keys: list[str], timeout_s: float) -> None:
    """Over a connection of its own, because that of an aborted wait is closed. OSError if the store is gone."""
    if keys:
        client = StoreClient(address, timeout_s=timeout_s)
        try:
            client.delete(keys)
        finally:
            client.close()
