"""Scripts of random sequences: reproducible, and possible to survive."""

from __future__ import annotations

import doctest
from collections import Counter
from pathlib import Path

import pytest

from resihp_trainer.trials import script as scripts
from resihp_trainer.trials.outcome import job_of
from resihp_trainer.trials.script import MIN_LEFT, Change, Loss, Rejoin, Strike, random_script


@pytest.mark.parametrize("index", range(50))
def test_a_script_is_reproducible_and_leaves_enough_ranks(index: int) -> None:
    script = random_script(7, index)
    assert script == random_script(7, index)
    assert script != random_script(8, index)
    alive, starts = set(range(script.num_ranks)), Counter[int]()
    before = 0
    for event in script.events:
        assert before < event.iteration < script.iterations - 2
        before = event.iteration
        match event:
            case Loss():
                assert set(event.victims) <= alive
                alive -= set(event.victims)
                assert {f.rank: f.start for f in event.faults} == {f.rank: starts[f.rank] for f in event.faults}
            case Rejoin():
                assert not set(event.ranks) & alive
                alive |= set(event.ranks)
                starts.update(event.ranks)
        assert len(alive) >= MIN_LEFT


def test_everything_comes_up_and_the_job_takes_the_faults() -> None:
    scripts = [random_script(7, index) for index in range(50)]
    events = [event for script in scripts for event in script.events]
    losses = [event for event in events if isinstance(event, Loss)]
    assert {loss.strike for loss in losses if len(loss.victims) > 1} == set(Strike)
    assert {str(fault.kind) for loss in losses for fault in loss.faults} == {"kill", "freeze"}
    assert len({event.what for event in events if isinstance(event, Change)}) == 6
    assert {script.num_ranks for script in scripts} == set(range(4, 10))
    for script in scripts:
        assert job_of(script, "float64", Path("out")).faults == script.faults


def test_examples_in_docstrings() -> None:
    found = doctest.testmod(scripts)
    assert found.attempted
    assert not found.failed
