"""One fleet of eight ranks for all tests of the room: it survives the faults of each, and is replenished."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.comm_fleet import Fleet
from support.zygote_client import ZygoteClient


@pytest.fixture(scope="session")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), 8)
    yield fleet
    fleet.close()


@pytest.fixture
def fleet(shared_fleet: Fleet) -> Fleet:
    shared_fleet.replenish()
    return shared_fleet


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZygoteClient]:
    """Forks `zygote_program`."""
    client = ZygoteClient(tmp_path_factory.mktemp("zygote"), "support.zygote_program:main")
    yield client
    client.close()
