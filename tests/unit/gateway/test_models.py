"""Not-a-number never leaves the gateway."""

from __future__ import annotations

import json
import math

import pytest

from resihp_gateway.models import IterationView, ReconfigurationView
from support.store import reconfiguration


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_not_finite_numbers_become_null(value: float) -> None:
    view = IterationView(iteration=1, epoch=1, loss=value, step_s=0.1, tokens=1, samples_expected=1, samples_once=1)
    assert json.loads(view.model_dump_json())["loss"] is None


def test_not_finite_numbers_deep_inside_become_null() -> None:
    record = reconfiguration("demo", alternatives=({"name": "x", "predicted_tokens_per_s": math.nan},))
    view = ReconfigurationView.model_validate(record)
    assert json.loads(view.model_dump_json())["alternatives"] == [{"name": "x", "predicted_tokens_per_s": None}]
