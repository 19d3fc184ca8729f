"""The pictures of a change: well-formed, true to the plans, safe in a page."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from resihp_gateway.drawing import phases_svg, plans_svg
from support.dashboard import LARGE, MIDDLE, lighter, without
from support.gateway import AFTER_LOSS, HEALTHY

SVG = "{http://www.w3.org/2000/svg}"


def classes(picture: str) -> list[str]:
    return [e.get("class", "") for e in ElementTree.fromstring(picture).iter() if e.get("class")]


def test_a_lost_device_leaves_a_dashed_share() -> None:
    picture = plans_svg(HEALTHY, AFTER_LOSS, "R0.S1 TP 2 -> 1")
    found = classes(picture)
    assert (found.count("gap"), found.count("border moved"), found.count("full")) == (1, 0, 8)
    assert ElementTree.fromstring(picture).get("aria-label") == "R0, R1: R0.S1 TP 2 -> 1"


def test_replicas_that_did_not_change_are_only_named() -> None:
    old = MIDDLE.healthy()
    picture = plans_svg(old, lighter(old, 70), "")
    assert classes(picture).count("full") == 32
    assert classes(picture).count("border moved") == 1
    assert "unchanged: R0, R2, R3" in picture


def test_equal_changes_are_drawn_once_even_in_a_large_cluster() -> None:
    old = LARGE.healthy()
    picture = plans_svg(old, without(old, 2000), "")
    assert len(picture) < 60_000
    assert "unchanged: R0, R1 and 28 others" in picture


def test_dropped_and_first_plans() -> None:
    assert "dropped" in plans_svg(HEALTHY, replace(HEALTHY, replicas=HEALTHY.replicas[:1], standby=(4, 5, 6, 7)), "")
    first = plans_svg(None, HEALTHY, "")
    assert "plan" in first
    assert "border" not in classes(first)


def test_words_cannot_break_out() -> None:
    picture = plans_svg(HEALTHY, AFTER_LOSS, '"><script>alert(1)</script>')
    assert ElementTree.fromstring(picture).findall(f".//{SVG}script") == []


def test_phases_share_one_axis_and_abort_runs_beside_planning() -> None:
    root = ElementTree.fromstring(phases_svg({"detect": 0.1, "plan": 0.2, "abort": 0.05, "move": 0.7, "redo": None}))
    bars = {e.get("class"): (float(e.get("x", 0)), float(e.get("width", 0))) for e in root.iter(f"{SVG}rect")}
    assert bars["abort"][0] == bars["plan"][0]
    assert bars["move"][0] > bars["plan"][0] + bars["plan"][1] - 0.2
    assert bars["move"][1] > 3 * bars["plan"][1]
