"""The store through which the ranks of an epoch find each other, made abortable.

A blocking `TCPStore.wait` cannot be interrupted from the same process, and one connection serves one request at a time.
So this store polls. It remembers the keys it set, because each rank deletes its own when an epoch is retired.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import Store, TCPStore  # typed here; `torch.distributed` re-exports them

POLL_S = 0.003


def connect(address: str, timeout_s: float) -> TCPStore:
    """Client of the store at `host:port`. ValueError for a malformed address; RuntimeError if it cannot be reached."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"store address {address!r} is not host:port")
    return TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)


class AbortableStore(Store):
    """A store whose waits call `check` every 3 ms: if that raises, the wait raises.

    The backend calls it from C++; keep a reference to the Python object as long as the backend is being constructed, or
    its methods are no longer found. `timeout_s` bounds a wait for peers (TimeoutError).
    """

    def __init__(self, client: TCPStore, check: Callable[[], None], timeout_s: float) -> None:
        super().__init__()
        self._client = client
        self._check = check
        self._timeout_s = timeout_s
        self.keys_set: list[str] = []

    def set(self, key: str, value: str) -> None:
        self._check()
        self._client.set(key, value)
        self.keys_set.append(key)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._client.get(key)

    def add(self, key: str, value: int) -> int:
        self._check()
        self.keys_set.append(key)
        return self._client.add(key, value)

    def check(self, keys: list[str]) -> bool:
        self._check()
        return self._client.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        deadline = time.monotonic() + limit_s
        while not self.check(keys):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no peer set {keys} within {limit_s:g} s")
            time.sleep(POLL_S)

    def delete_own_keys(self) -> None:
        """Delete what this rank set. RuntimeError if the store has gone."""
        while self.keys_set:
            self._client.delete_key(self.keys_set.pop())
