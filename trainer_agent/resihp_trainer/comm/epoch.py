"""What one epoch holds in this process: its builder thread, its groups, their sockets, its store client.

`reap` hands all of it to a throw-away thread: destructors of gloo may block until gloo's timeout, and must not do so in
the training thread or the watcher.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

from resihp_trainer.comm.gloo import GlooGroup
from resihp_trainer.comm.rendezvous import AbortableStore
from resihp_trainer.comm.sockets import Sockets, opened_since, shut
from resihp_trainer.comm.solo import SoloGroup

BUILDER_GRACE_S = 1.0
"""An aborted builder leaves the store within milliseconds; after this long the store itself must be stuck."""


class EpochRecord:
    """Owned by the communicator. `sockets` and `before` are read and written under its lock."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.groups: dict[str, GlooGroup | SoloGroup] = {}
        self.store: AbortableStore | None = None
        self.store_sockets: Sockets = {}
        self.sockets: dict[int, int] = {}
        self.before: Sockets | None = None
        """Sockets open when the group now under construction was begun; None between groups."""
        self._built: Future[None] = Future()
        self._builder: Thread | None = None
        self._reaped = False

    def start(self, construct: Callable[[], None]) -> None:
        """Run `construct` in the builder thread."""
        self._builder = Thread(target=_fulfil, args=(self._built, construct), name=f"build-e{self.epoch}", daemon=True)
        self._builder.start()

    def wait_built(self, timeout_s: float) -> bool:
        """True if construction is done, False if it still runs; raises what it raised."""
        try:
            self._built.exception(timeout_s)
        except TimeoutError:
            return False
        self._built.result()
        return True

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
        if self._built.done():
            self._surrender(box)
        Thread(target=self._reap, args=(box,), name=f"reap-e{self.epoch}", daemon=True).start()

    def _reap(self, box: list[object]) -> None:
        builder = self._builder
        if builder is not None:
            builder.join(BUILDER_GRACE_S)
            if builder.is_alive():
                shut(self.store_sockets)
                builder.join()
        self._surrender(box)
        box.clear()  # the destructors run here, whoever still refers to the box
        if self.store is not None:
            _delete_keys(self.store)
            self.store = None

    def _surrender(self, box: list[object]) -> None:
        for group in self.groups.values():
            if isinstance(group, GlooGroup):
                group.surrender(box)
        self.groups.clear()


def _fulfil(future: Future[None], construct: Callable[[], None]) -> None:
    """Thread border: whatever happens becomes the future's outcome."""
    try:
        construct()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(None)


def _delete_keys(store: AbortableStore) -> None:
    try:
        store.delete_own_keys()
    except (RuntimeError, OSError):
        return  # the store has gone, and the keys with it
