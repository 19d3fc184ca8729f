"""The client of the zygote, with this folder on the workers' path so that tests can bring worker programs."""

from __future__ import annotations

from pathlib import Path

from resihp_trainer.trials import zygote_client
from resihp_trainer.trials.zygote_client import SpawnedWorker

__all__ = ["SpawnedWorker", "ZygoteClient"]

TESTS = Path(__file__).parent.parent


class ZygoteClient(zygote_client.ZygoteClient):
    """See the base class."""

    def __init__(self, folder: Path, worker: str, *, timeout_s: float = 60.0) -> None:
        super().__init__(folder, worker, timeout_s=timeout_s, environment={"PYTHONPATH": str(TESTS)})
