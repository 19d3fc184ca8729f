"""Not-a-number never leaves the gateway."""

from __future__ import annotations

import json
import math

import pytest

from resihp_gateway.models import IterationView, ReconfigurationView
from resihp_gateway.whatif import paced
from resihp_gateway.wording import predicted_rate, signed
from support.store import reconfiguration


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_not_finite_numbers_become_null(value: float) -> None:
    view = IterationView(iteration=1, epoch=1, loss=value, step_s=0.1, tokens=1, samples_expected=1, samples_once=1)
    assert json.loads(view.model_dump_json())["loss"] is None


def test_a_nominal_prediction_is_not_held_against_what_was_achieved() -> None:
    rates = {"predicted_tokens_per_s": 800.0, "achieved_tokens_per_s": 760.0}
    paced = ReconfigurationView.model_validate(reconfiguration("demo", predicted_by="pace", **rates))
    assert paced.prediction_error == pytest.approx(-0.05)
    assert predicted_rate(paced) == "800 tokens/s at the job's pace"
    nominal = ReconfigurationView.model_validate(reconfiguration("demo", predicted_by="nominal", **rates))
    assert nominal.prediction_error is None
    assert predicted_rate(nominal, " tok/s") == "800 tok/s nominal"
    old = ReconfigurationView.model_validate(reconfiguration("demo", predicted_by="", **rates))
    assert (predicted_rate(old), old.prediction_error) == ("800 tokens/s", paced.prediction_error)


def test_a_difference_that_rounds_to_nothing_has_no_sign() -> None:
    assert [signed(x) for x in (-1e-9, 0.0, 0.05, -0.123)] == ["0.0%", "0.0%", "+5.0%", "-12.3%"]
    assert signed(-0.004, 0) == "0%"


def test_not_finite_numbers_deep_inside_become_null() -> None:
    record = reconfiguration("demo", alternatives=({"name": "x", "predicted_tokens_per_s": math.nan},))
    view = ReconfigurationView.model_validate(record)
    assert json.loads(view.model_dump_json())["alternatives"] == [{"name": "x", "predicted_tokens_per_s": None}]


def test_a_what_if_answer_at_the_pace_of_the_job() -> None:
    answer = {"now_tokens_per_s": 4000.0, "bound_tokens_per_s": None, "change_s": 2.0, "break_even_s": 30.0}
    decision = {"predicted_step_s": 0.5, "alternatives": [{"predicted_step_s": 1.0, "name": "swap"}], "planning_s": 0.1}
    assert paced({**answer, "decision": decision}, 0.25) == {
        "now_tokens_per_s": 1000.0,
        "bound_tokens_per_s": None,
        "change_s": 2.0,
        "break_even_s": 30.0,
        "decision": {
            "predicted_step_s": 2.0,
            "alternatives": [{"predicted_step_s": 4.0, "name": "swap"}],
            "planning_s": 0.1,
        },
    }
