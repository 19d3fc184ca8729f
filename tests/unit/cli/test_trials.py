"""What `resihp verify --random` says about sequences that hold and that do not."""

from __future__ import annotations

from typing import Any

from resihp_cli.commands.trials import conclusion, summary, told


def sequence(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "index": index,
        "script": "4 workers, 9 iterations: kill 1@2:vote",
        "log": ["  0 initial: R0", "  1 dead [1]"],
        "seconds": 2.0,
        "max_abs_diff": 2e-13,
        "replicas_equal": True,
        "samples_expected": 90,
        "samples_once": 90,
        "epochs": 3,
        "deaths": 1,
        "lost_iterations": 0,
        "skipped": 0,
        "error": "",
        "holds": True,
        **changes,
    }


def test_all_hold() -> None:
    document = summary([sequence(0), sequence(1, max_abs_diff=3e-12)], seed=7, dtype="float64", limit=1e-9, count=2)
    assert document["holds"]
    assert (document["max_abs_diff"], document["samples_once"], document["plans"]) == (3e-12, 180, 6)
    assert conclusion(document).endswith(
        "largest difference 3e-12 (limit 1e-09, float64), 180 of 180 samples once: holds"
    )
    assert "dead" not in told(sequence(0))
    assert "3 plans; 2 iterations made again; 2.0 s" in told(sequence(0, lost_iterations=2))


def test_one_does_not() -> None:
    bad = sequence(1, max_abs_diff=None, error="not within 60 s", holds=False)
    document = summary([sequence(0), bad], seed=3, dtype="float64", limit=1e-9, count=2)
    assert not document["holds"]
    assert document["failed"] == [1]
    assert conclusion(document).endswith("[1] do not hold; again: resihp verify --random 1 --seed 3 --only 1")
    assert "DOES NOT HOLD: not within 60 s" in told(bad)
    assert "1 dead [1]" in told(bad)


def test_sequences_that_were_never_run_do_not_hold() -> None:
    assert not summary([sequence(0)], seed=3, dtype="float64", limit=1e-9, count=2)["holds"]
