"""Moved elements without a list of moves, against the list."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import Interval, ModelSpec, layout, slice_elements, transfers
from resihp_plan.planner.moving import moving
from support.plans import demo_plan, models, plans


@given(st.data(), models())
@settings(max_examples=20)
def test_equal_to_the_transfers(data: st.DataObject, model: ModelSpec) -> None:
    old, new = data.draw(plans(model)), data.draw(plans(model))
    moved = transfers(layout(old, model), layout(new, model), alive=range(40))
    specs = {t.name: t for t in model.tensors}
    received: Counter[int] = Counter()
    for m in moved.moves:
        received[m.destination] += slice_elements(specs[m.tensor], Interval(m.start, m.stop))
    found = moving(old, new, model)
    assert found.total == moved.num_elements(model)
    assert found.most == max(received.values(), default=0)
    assert found.receivers == len(received)


def test_nothing_moves_between_equal_plans() -> None:
    assert moving(demo_plan(), demo_plan(epoch=2), ModelSpec()).total == 0
