"""What one epoch holds in this process: its builder thread, its groups, their sockets, its store client.

`reap` hands all of it to a throw-away thread: destructors of gloo may block until gloo's timeout, and must not do so in
the training thread or the watcher.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

from resihp_trainer.comm.gloo import GlooGroup
from resihp_trainer.comm.nccl import NcclGroup
from resihp_trainer.comm.rendezvous import AbortableStore, StoreClient, delete_keys
from resihp_trainer.comm.sockets import Sockets, opened_since, shut
from resihp_trainer.comm.solo import SoloGroup

STORE_TIMEOUT_S = 10.0
"""Bound on a request to the store; waits for peers there are bounded by the backend's timeout."""


class EpochRecord:
    """Owned by the communicator. `sockets` and `before` are read and written under its lock."""

    def __init__(self, epoch: int, store_address: str, namespace: str) -> None:
        self.epoch = epoch
        self.namespace = namespace
        """Of its keys in the store."""
        self.groups: dict[str, GlooGroup | NcclGroup | SoloGroup] = {}
        self._store_address = store_address
        self._client: StoreClient | None = None
        self._store: AbortableStore | None = None
        self.sockets: dict[int, int] = {}
        self.before: Sockets | None = None
        """Sockets open when the group now under construction was begun; None between groups."""
        self.begun: Future[None] = Future()
        """The first group stands."""
        self.built: Future[None] = Future()
        """All groups stand."""
        self._builder: Thread | None = None
        self._reaped = False

    @property
    def device_groups(self) -> tuple[NcclGroup, ...]:
        """Those that are aborted through their backend and not through their sockets."""
        return tuple(group for group in self.groups.values() if isinstance(group, NcclGroup))

    def start(self, construct: Callable[[], None]) -> None:
        """Run `construct` in the builder thread."""
        futures = self.begun, self.built
        self._builder = Thread(target=_fulfil, args=(*futures, construct), name=f"build-e{self.epoch}", daemon=True)
        self._builder.start()

    def meet(self, check: Callable[[], None], timeout_s: float) -> AbortableStore:
        """The store of this epoch, connected at the first call; the builder's alone. It expects no group."""
        if self._store is None:
            self._client = StoreClient(self._store_address, timeout_s=min(STORE_TIMEOUT_S, timeout_s), check=check)
            self._store = AbortableStore(self._client, timeout_s)
        self._store.expect(0)
        return self._store

    def shut(self, *, half_built: bool) -> None:
        """Break the connections of all groups; with `half_built` also those of the group under construction."""
        shut(self.sockets)
        if half_built and self.before is not None:
            shut(opened_since(self.before))

    def reap(self) -> None:
        """Drop everything in a thread of its own. Returns at once; idempotent.

        Groups that were handed out are emptied before it returns, so that no operation can start on them any more.
        """
        if self._reaped:
            return
        self._reaped = True
        box: list[object] = []
        self._surrender(box)
        Thread(target=self._reap, args=(box,), name=f"reap-e{self.epoch}", daemon=True).start()

    def _reap(self, box: list[object]) -> None:
        if self._builder is not None:
            self._builder.join()
        self._surrender(box)
        box.clear()  # the destructors run here, whoever still refers to the box
        self._leave_store()

    def _leave_store(self) -> None:
        if self._client is None or self._store is None:
            return
        self._client.close()
        try:
            delete_keys(self._store_address, self._store.keys_set, STORE_TIMEOUT_S)
        except OSError:
            return  # the store has gone, and the keys with it

    def _surrender(self, box: list[object]) -> None:
        while self.groups:  # the builder may still add to them; then this is called again when it has ended
            _, group = self.groups.popitem()
            if not isinstance(group, SoloGroup):
                group.surrender(box)


def _fulfil(begun: Future[None], built: Future[None], construct: Callable[[], None]) -> None:
    """Thread border: whatever happens becomes the outcome of what has none yet."""
    futures = [begun, built]
    try:
        construct()
    except BaseException as error:
        for future in futures:
            if not future.done():
                future.set_exception(error)
    else:
        for future in futures:
            if not future.done():
                future.set_result(None)
