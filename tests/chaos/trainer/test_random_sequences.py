"""Random sequences of plan changes and faults on real workers: every one ends with the undisturbed parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from resihp_trainer.trials.outcome import run_script
from resihp_trainer.trials.script import random_script
from resihp_trainer.trials.zygote_client import ZygoteClient

SEED = 7
LIMIT = 1e-9
FEW = (26, 27)
"""Between them, on five workers: the death of an only holder, second deaths while the others leave and while the
iteration is redone, a return, changes of degrees, of migrations and to any other layout."""


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ZygoteClient, str]]:
    client = ZygoteClient(tmp_path_factory.mktemp("zygote"), environment={"OMP_NUM_THREADS": "1"})
    _, address = client.store()
    yield client, address
    assert client.close() == 0


@pytest.mark.timeout(200)
@pytest.mark.parametrize("index", FEW)
def test_a_sequence(zygote: tuple[ZygoteClient, str], tmp_path: Path, index: int) -> None:
    outcome = run_script(*zygote, random_script(SEED, index), "float64", tmp_path)
    assert outcome.holds(LIMIT), outcome
    assert outcome.deaths


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_fifty_sequences(zygote: tuple[ZygoteClient, str], tmp_path: Path) -> None:
    outcomes = [run_script(*zygote, random_script(SEED, i), "float64", tmp_path / str(i)) for i in range(50)]
    assert not [outcome for outcome in outcomes if not outcome.holds(LIMIT)]
