"""Exact min-max division against brute force."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan.planner.level import level

SECONDS = st.floats(0.1, 10.0)


def _height(fixed: list[float], each: list[float], counts: tuple[int, ...], least: int) -> float:
    return max((f + n * e for f, e, n in zip(fixed, each, counts, strict=True) if n > least), default=0.0)


@given(st.data(), st.integers(1, 4), st.integers(0, 9), st.integers(0, 1))
@settings(max_examples=100)
def test_no_other_division_is_lower(data: st.DataObject, n: int, total: int, least: int) -> None:
    each = data.draw(st.lists(SECONDS, min_size=n, max_size=n))
    fixed = data.draw(st.lists(st.floats(0.0, 20.0), min_size=n, max_size=n))
    caps = data.draw(st.one_of(st.none(), st.lists(st.integers(0, 9), min_size=n, max_size=n)))
    allowed = [range(least, (caps[i] if caps else total) + 1) for i in range(n)]
    divisions = [c for c in itertools.product(*allowed) if sum(c) == total]
    found = level(fixed, each, total, least=least, caps=caps)
    if found is None:
        assert not divisions
        return
    assert found in divisions
    best = min(_height(fixed, each, c, least) for c in divisions)
    assert _height(fixed, each, found, least) <= best * (1 + 1e-9)


@given(st.data(), st.integers(2, 12), st.integers(60, 200), st.integers(0, 1))
@settings(max_examples=40)
def test_the_quick_start_changes_nothing(data: st.DataObject, n: int, total: int, least: int) -> None:
    """Against the plain greedy rule, which starts from the least."""
    each = data.draw(st.lists(SECONDS, min_size=n, max_size=n))
    fixed = data.draw(st.lists(st.floats(0.0, 100.0), min_size=n, max_size=n))
    counts = [least] * n
    for _ in range(total - least * n):
        i = min(range(n), key=lambda i: (fixed[i] + (counts[i] + 1) * each[i], i))
        counts[i] += 1
    found = level(fixed, each, total, least=least)
    assert found is not None
    assert sum(found) == total
    plain = _height(fixed, each, tuple(counts), least)
    assert abs(_height(fixed, each, found, least) - plain) <= 1e-9 * plain
