"""The dashboard in a real browser, on real routes: what an operator sees and does."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from resihp_gateway.access import Role, TokenFile
from resihp_messages.request import (
    Reply,
    RequestEvict,
    RequestHold,
    RequestMode,
    RequestReadmit,
    RequestThreshold,
    RequestUndo,
)
from resihp_store import ControlRecord, decisions
from support.browser import LOADED, opened
from support.dashboard import JOB, MIDDLE, SMALL, Server, dashboard
from support.gateway import open_gateway, play_scheduler

pytestmark = pytest.mark.timeout(280)
SECONDS_TO_BE_SEEN = 60.0
"""A hang bound: browser, gateway and test share the machine. `pytest -rP` shows what it took."""


async def text(page: Any, selector: str) -> str:
    return " ".join((await page.inner_text(selector)).split())


async def test_an_incident_is_seen_at_once_and_a_restart_costs_nothing(tmp_path: Path) -> None:
    async with dashboard(tmp_path, SMALL, told=False) as (server, story), opened(server.url) as (page, _):
        await page.wait_for_selector(LOADED)
        await page.get_by_text("All 8 devices healthy").wait_for()
        await page.get_by_role("gridcell", name="R1·S0·T1, rank 5, healthy").click()
        begun = time.monotonic()
        await story.stop_device(3)
        await page.get_by_role("gridcell", name="R0·S1·T1, rank 3, stopped").wait_for()
        await page.get_by_role("log").get_by_text("stopped").wait_for()
        seen_s = time.monotonic() - begun
        print(f"seen after {seen_s:.2f} s")
        assert seen_s < SECONDS_TO_BE_SEEN
        await page.get_by_text("1 of 8 devices needs attention").wait_for()

        await server.stop()
        await page.get_by_role("alert").filter(has_text="cannot be reached").wait_for()
        assert await page.get_by_role("gridcell", name="rank 5").get_attribute("aria-selected") == "true"
        await server.start()
        await page.wait_for_selector(LOADED)
        await page.wait_for_selector("[role=alert]", state="detached")
        await story.beat()
        await story.stop_device(6)
        await page.get_by_role("gridcell", name="rank 6, stopped").wait_for()
        assert await page.get_by_role("gridcell", name="rank 5").get_attribute("aria-selected") == "true"
        await page.locator(".feed li").nth(1).wait_for()


async def test_from_a_slow_device_to_its_change_of_plan_and_what_if(tmp_path: Path) -> None:
    async with dashboard(tmp_path, MIDDLE) as (server, _), opened(server.url) as (page, _):
        await page.wait_for_selector(LOADED)
        await page.get_by_text("2 of 256 devices need attention").wait_for()
        first = page.get_by_role("gridcell").first
        await first.focus()
        for _ in range(2):  # `n`: the stopped one, then the slow one
            await page.keyboard.press("n")
        focused = await page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert "R2·S15·T3, rank 191, slow, p = 0.6" in focused
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="R2·S15·T3").wait_for()
        await page.get_by_role("button", name="Ask").click()
        await page.get_by_text("With the best plan").wait_for(timeout=40_000)
        assert "Pays off" in await text(page, ".whatif")

        await page.locator(".feed").get_by_role("link", name="plan changed").first.click()
        await page.get_by_role("heading", name="R2·S15·T3 is slow").wait_for()
        assert await page.locator(".proof li.ok").count() == 4
        drawing = page.get_by_role("img", name="R2: R2.S15 weights 1:1:1:1 -> 2:2:2:1; R2 layers 16x5 -> 14x5+6+4")
        await drawing.locator("line.moved").wait_for(state="attached")
        assert await page.locator(".timeline li").count() == 5
        assert "the group waits for its slowest member" in await text(page, "article.change")
        assert "by constants measured on this job" in await text(page, ".figures")  # readable without a mouse

        await page.get_by_role("link", name="History").click()
        await page.locator(".changes tbody tr").nth(2).wait_for()
        assert "TP 4 → 3" in await text(page, ".changes tbody")


async def test_the_history_narrows_by_kind_device_and_time(tmp_path: Path) -> None:
    async with dashboard(tmp_path, SMALL) as (server, _), opened(server.url, "/#/history") as (page, _):
        rows = page.locator(".changes tbody tr")
        await rows.nth(2).wait_for()

        async def narrowed_to(words: str) -> None:
            await rows.nth(1).wait_for(state="detached")
            await rows.filter(has_text=words).wait_for()

        kind = page.get_by_label("kind")
        await kind.select_option("worker_lost")
        await narrowed_to("R0·S1·T1 stopped")
        await kind.select_option("device_slow")
        await narrowed_to("R1·S0·T1 is slow")
        await page.get_by_role("button", name="Clear").click()
        await rows.nth(2).wait_for()
        await page.get_by_label("device").fill("3")
        await narrowed_to("R0·S1·T1 stopped")
        await page.get_by_label("device").fill("")
        await rows.nth(2).wait_for()
        # the first plan is minutes older than the two changes
        before = (datetime.now() - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M")
        await page.get_by_label("until").fill(before)
        await narrowed_to("job started")
        await page.get_by_label("kind").select_option("node_lost")
        await page.get_by_text("No change fits these filters.").wait_for()
        assert await rows.filter(has_text="job started").count() == 0


async def test_an_operator_evicts_undoes_protects_and_changes_a_threshold(tmp_path: Path) -> None:
    async with dashboard(tmp_path, SMALL, told=False) as (server, story), opened(server.url) as (page, _):
        verbs = ("RequestEvict", "RequestUndo", "RequestHold", "RequestThreshold", "RequestReadmit")
        asked = [await play_scheduler(story.gateway, verb, Reply(accepted=True)) for verb in verbs]
        dialog = page.get_by_role("dialog")

        async def say(button: str, number: str = "") -> None:
            await page.get_by_role("button", name=button).click()
            if number:
                await dialog.get_by_role("spinbutton").fill(number)
            await dialog.get_by_label("Reason").fill("bad link")
            await page.keyboard.press("Enter")
            await dialog.wait_for(state="hidden")

        await page.get_by_role("gridcell", name="rank 5, healthy").click()
        await say("Evict rank 5")
        await say("Undo")
        await say("Protect", "90")
        await page.get_by_text("Thresholds").click()
        await say("Change min_gain", "0.05")
        async with story.work() as work:  # as the scheduler would have written it
            record = ControlRecord(JOB, evicted=frozenset({5}), thresholds={"min_gain": 0.05})
            await decisions.put_control(work, record)
        await page.get_by_text("Evicted: rank 5").wait_for()
        await page.get_by_text("min_gain 0.05").wait_for()
        await say("Readmit rank 5")
    assert [e.body for envelopes in asked for e in envelopes] == [
        RequestEvict(ranks=(5,), reason="bad link"),
        RequestUndo(reason="bad link"),
        RequestHold(for_s=90, reason="bad link"),
        RequestThreshold(name="min_gain", value=0.05, reason="bad link"),
        RequestReadmit(ranks=(5,), reason="bad link"),
    ]


async def test_an_action_needs_a_reason_and_reaches_the_scheduler(tmp_path: Path) -> None:
    async with dashboard(tmp_path, SMALL) as (server, story), opened(server.url, color_scheme="dark") as (page, _):
        asked = await play_scheduler(story.gateway, "RequestMode", Reply(accepted=True))
        await page.get_by_role("button", name="advise").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Reason").fill("evaluation run")
        await page.keyboard.press("Enter")
        await dialog.wait_for(state="hidden")
        assert [e.body for e in asked] == [RequestMode(mode="advise", reason="evaluation run")]
        nameless = await page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, a, [role=img]")].filter(e => !(
                 e.getAttribute("aria-label") || e.textContent.trim() || e.closest("label") || e.title
               )).map(e => e.outerHTML)"""
        )
        assert nameless == []
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
        await page.get_by_role("button", name="Switch to the light theme").click()
        assert await page.evaluate("document.documentElement.dataset.theme") == "light"


async def test_a_token_opens_the_page_and_its_role_limits_it(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    token = file.create("viewer", Role.VIEW, datetime.now(UTC))
    async with open_gateway(tmp_path, tokens_file=str(file.path)) as gateway:
        server = Server(gateway)
        await server.start()
        try:
            async with opened(server.url) as (page, complaints):
                await page.get_by_label("Access token").fill("rhp_wrong")
                await page.get_by_role("button", name="Open the dashboard").click()
                await page.get_by_role("alert").filter(has_text="not known").wait_for()
                await page.get_by_label("Access token").fill(token)
                await page.get_by_role("button", name="Open the dashboard").click()
                await page.wait_for_selector(LOADED)
                await page.get_by_text("Your token may only look.").wait_for()
                assert await page.get_by_role("button", name="Stop job").is_disabled()
                # the browser itself logs the two refusals (401) that the form is there for
                assert len(complaints.found) <= 4
                complaints.found = [c for c in complaints.found if "401" not in c]
        finally:
            await server.stop()


def test_vendored_files_are_those_that_the_list_names() -> None:
    import hashlib

    from resihp_gateway.page import STATIC

    folder = STATIC / "vendor"
    rows = [line.split("|") for line in (folder / "VENDOR.md").read_text().splitlines() if line.startswith("| ")][1:]
    named = {row[1].strip(): row[4].strip() for row in rows}
    found = {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.suffix in (".js", ".css")
    }
    assert found == named
    assert {p.name for p in folder.glob("LICENSE.*")} == {"LICENSE.htm", "LICENSE.preact", "LICENSE.uplot"}
