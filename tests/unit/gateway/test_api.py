"""The REST interface on real SQLite and the memory bus: answers, problems, and requests to the scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from resihp_gateway.models import DeviceView, Problem
from resihp_messages import Envelope
from resihp_messages.report import HealthScores, NodeBeat, WorkerBeat
from resihp_messages.request import Reply, RequestFault, RequestHold, RequestMode, RequestPlan, RequestRuling, SubmitJob
from support.gateway import AFTER_LOSS, PHASES, TestGateway, open_gateway, play_scheduler
from support.store import NOON


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[TestGateway]:
    async with open_gateway(tmp_path) as opened:
        yield opened


@pytest.fixture
async def http(gateway: TestGateway) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(gateway.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def test_job_and_devices(gateway: TestGateway, http: httpx.AsyncClient) -> None:
    job = (await http.get("/api/v1/jobs/demo")).json()
    assert (job["state"], job["committed"], job["epoch"]) == ("finished", 20, 2)
    assert job["plan_digest"] == AFTER_LOSS.digest
    assert [j["job"] for j in (await http.get("/api/v1/jobs")).json()] == ["demo"]
    devices = [DeviceView.model_validate(d) for d in (await http.get("/api/v1/jobs/demo/devices")).json()]
    assert [d.rank for d in devices] == list(range(8))
    assert (devices[3].state, devices[3].p, devices[3].position) == ("lost", 0.0, None)
    assert devices[7].position is not None
    assert (devices[7].position.replica, devices[7].position.stage, devices[7].position.tp_index) == (1, 1, 1)


async def test_devices_join_the_newest_beat(gateway: TestGateway, http: httpx.AsyncClient) -> None:
    worker = WorkerBeat(job="demo", rank=1, pid=77, state="training", epoch=2, iteration=9, ops=5, silent_s=0.01)
    beats = gateway.gateway.beats
    for sequence, pid, node in ((2, 77, "n0"), (1, 66, "n0"), (3, 55, "elsewhere")):
        beat = NodeBeat(
            node=node,
            sequence=sequence,
            period_s=0.25,
            host="h",
            comm_host="127.0.0.1",
            num_slots=8,
            store_address="127.0.0.1:1",
            workers=(worker.model_copy(update={"pid": pid}),) if node == "n0" else (),
        )
        await beats.hear(Envelope.of(beat, job="_fleet", source="agent", incarnation=f"a-{node}"))
    device = (await http.get("/api/v1/jobs/demo/devices")).json()[1]
    assert (device["live_pid"], device["worker_state"], device["iteration"]) == (77, "training", 9)
    assert device["beat_age_s"] >= 0
    assert (await http.get("/api/v1/jobs/demo/devices")).json()[0]["live_pid"] is None


async def test_history(http: httpx.AsyncClient) -> None:
    incidents = (await http.get("/api/v1/incidents", params={"job": "demo"})).json()
    assert incidents[0]["evidence"] == {"exit_code": -9, "detect_s": 0.004}
    changes = (await http.get("/api/v1/reconfigurations")).json()
    assert changes[0]["phases_s"] == PHASES
    assert changes[0]["alternatives"][0]["name"] == "drop replica"
    one = (await http.get("/api/v1/reconfigurations/r1")).json()
    assert {key: one[key] for key in changes[0]} == changes[0]
    assert one["incident"] == incidents[0]
    assert (one["old_plan"]["epoch"], one["new_plan"]["digest"]) == (1, AFTER_LOSS.digest)
    assert one["prediction_error"] == pytest.approx(760 / 800 - 1)
    picture = await http.get("/api/v1/reconfigurations/r1/plans.svg")
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/svg+xml")
    assert 'aria-label="R0, R1: ' in picture.text
    assert (one["pause_s"], one["lost_device_s"]) == (0.6, pytest.approx(0.6 * 7))
    for chosen, epochs in (({}, [1, 2]), ({"limit": 1}, [1]), ({"after": 1}, [2]), ({"epoch": 2}, [2])):
        plans = await http.get("/api/v1/plans", params={"job": "demo", **chosen})
        assert [p["epoch"] for p in plans.json()] == epochs
    tail = (await http.get("/api/v1/iterations", params={"job": "demo", "after": 18})).json()
    assert [i["iteration"] for i in tail] == [19, 20]
    assert (await http.get("/api/v1/incidents", params={"job": "other"})).json() == []


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/v1/jobs/nobody", 404, "no job 'nobody'"),
        ("/api/v1/jobs/nobody/devices", 404, "no job 'nobody'"),
        ("/api/v1/reconfigurations/nope", 404, "nope"),
        ("/api/v1/iterations", 422, "job"),
        ("/api/v1/iterations?job=demo&limit=0", 422, "limit"),
        ("/api/v1/plans?job=nobody", 404, "nobody"),
        ("/api/v1/jobs/a.b", 422, "job"),
        ("/api/v1/nothing", 404, "Not Found"),
        ("/events?name=a%3Eb", 422, "name"),
    ],
)
async def test_problems_name_what_is_wrong(http: httpx.AsyncClient, path: str, status: int, words: str) -> None:
    response = await http.get(path)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = Problem.model_validate(response.json())
    assert problem.status == status
    assert words in problem.detail


async def test_last_event_id_must_be_a_sequence(http: httpx.AsyncClient) -> None:
    response = await http.get("/events", headers={"Last-Event-ID": "abc"})
    assert response.status_code == 422
    assert "abc" in response.json()["detail"]


async def test_submit_reaches_the_scheduler(gateway: TestGateway, http: httpx.AsyncClient) -> None:
    asked = await play_scheduler(gateway, "SubmitJob", Reply(accepted=True))
    response = await http.post("/api/v1/jobs", json={"name": "second", "iterations": 3})
    assert (response.status_code, response.json()["job"]) == (201, "second")
    assert isinstance(asked[0].body, SubmitJob)
    assert (asked[0].job, asked[0].body.spec.iterations) == ("second", 3)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"name": "x", "iteration_count": 3}, "iteration_count"),
        ({"name": "x", "parallel": {"tp": 8}}, "parallel.tp (8) exceeds model.num_kv_heads (4)"),
        ({"name": "has space"}, "name"),
    ],
)
async def test_bad_jobs_are_refused_with_the_rule(http: httpx.AsyncClient, body: dict[str, Any], words: str) -> None:
    response = await http.post("/api/v1/jobs", json=body)
    assert response.status_code == 422
    assert words in response.json()["detail"]


async def test_refusal_is_a_conflict_with_the_schedulers_reason(gateway: TestGateway, http: httpx.AsyncClient) -> None:
    await play_scheduler(gateway, "RequestFault", Reply(accepted=False, reason="rank 3 is lost already"))
    response = await http.post("/api/v1/jobs/demo/faults", json={"rank": 3, "fault": "kill"})
    assert (response.status_code, response.json()["detail"]) == (409, "rank 3 is lost already")


async def test_temporary_refusal_asks_to_try_again(gateway: TestGateway, http: httpx.AsyncClient) -> None:
    await play_scheduler(gateway, "RequestFault", Reply(accepted=False, reason="no leader", temporary=True))
    response = await http.post("/api/v1/jobs/demo/faults", json={"rank": 3, "fault": "kill"})
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


async def test_fault_and_plan_and_stop(gateway: TestGateway, http: httpx.AsyncClient) -> None:
    faults = await play_scheduler(gateway, "RequestFault", Reply(accepted=True))
    plans = await play_scheduler(gateway, "RequestPlan", Reply(accepted=True, reconfiguration_id="r9"))
    stops = await play_scheduler(gateway, "RequestStop", Reply(accepted=True))
    assert (await http.post("/api/v1/jobs/demo/faults", json={"rank": 5, "fault": "freeze"})).status_code == 202
    assert (await http.post("/api/v1/jobs/demo/faults", json={"rank": 5, "fault": "slow_link"})).status_code == 422
    plan = AFTER_LOSS.to_dict()
    del plan["epoch"]  # the scheduler assigns it
    response = await http.post("/api/v1/jobs/demo/plans", json={"plan": plan})
    assert (response.status_code, response.json()["reconfiguration_id"]) == (202, "r9")
    assert (await http.post("/api/v1/jobs/demo/stop")).status_code == 202
    assert isinstance(faults[0].body, RequestFault)
    assert (faults[0].body.rank, faults[0].body.fault) == (5, "freeze")
    assert isinstance(plans[0].body, RequestPlan)
    assert plans[0].body.plan["standby"] == []
    assert len(stops) == 1


async def test_mode_ruling_and_hold(gateway: TestGateway, http: httpx.AsyncClient) -> None:
    modes = await play_scheduler(gateway, "RequestMode", Reply(accepted=True))
    rulings = await play_scheduler(gateway, "RequestRuling", Reply(accepted=True, decision_id="d1"))
    holds = await play_scheduler(gateway, "RequestHold", Reply(accepted=True))
    assert (await http.post("/api/v1/jobs/demo/mode", json={"mode": "advise"})).status_code == 202
    assert (await http.post("/api/v1/jobs/demo/approve")).json()["decision_id"] == "d1"
    assert (await http.post("/api/v1/jobs/demo/veto", json={"decision_id": "d1"})).status_code == 202
    assert (await http.post("/api/v1/jobs/demo/hold", json={"for_s": 60, "reason": "upload"})).status_code == 202
    assert modes[0].body == RequestMode(mode="advise")
    assert [r.body for r in rulings] == [
        RequestRuling(ruling="approve"),
        RequestRuling(ruling="veto", decision_id="d1"),
    ]
    assert holds[0].body == RequestHold(for_s=60, reason="upload")
    assert (await http.post("/api/v1/jobs/demo/mode", json={"mode": "fast"})).status_code == 422


async def test_whatif_answers_and_applies_nothing(gateway: TestGateway, http: httpx.AsyncClient) -> None:
    response = await http.post("/api/v1/jobs/demo/whatif", json={"faults": {"5": 0.5}})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["now_tokens_per_s"] >= answer["do_nothing_tokens_per_s"] > 0
    assert answer["best_tokens_per_s"] >= answer["do_nothing_tokens_per_s"]
    assert answer["bound_tokens_per_s"] > 0
    assert answer["faults"] == {"5": 0.5}
    assert answer["difference"]
    assert answer["predicted_by"] in ("pace", "nominal")
    assert answer["shares_cores"] is True  # the seeded job runs on the CPU's real clock
    refused = await http.post("/api/v1/jobs/demo/whatif", json={"faults": {"3": 0.5}})
    assert (refused.status_code, refused.json()["detail"]) == (409, "rank 3 is not in the plan in force")
    assert gateway.broker_events() == ()


async def test_device_in_detail(gateway: TestGateway, http: httpx.AsyncClient) -> None:
    for k, p in ((18, 1.0), (19, 0.55), (20, 0.5)):
        gateway.gateway.health.note("demo", NOON, HealthScores(iteration=k, ranks=(4, 5), p=(1.0, p)))
    device = (await http.get("/api/v1/jobs/demo/devices/5")).json()
    assert device["p"] == 0.5
    assert [(h["iteration"], h["p"]) for h in device["health"]] == [(18, 1.0), (19, 0.55), (20, 0.5)]
    lost = (await http.get("/api/v1/jobs/demo/devices/3")).json()
    assert (lost["p"], [i["id"] for i in lost["incidents"]]) == (0.0, ["i1"])
    assert (await http.get("/api/v1/jobs/demo/devices/99")).status_code == 404


async def test_nonsense_plan_is_refused_before_it_reaches_anybody(http: httpx.AsyncClient) -> None:
    response = await http.post("/api/v1/jobs/demo/plans", json={"plan": {"replicas": 3}})
    assert response.status_code == 422
    assert "not a plan" in response.json()["detail"]


async def test_nobody_leads(http: httpx.AsyncClient) -> None:
    response = await http.post("/api/v1/jobs", json={"name": "second"})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert "BusUnavailable" in response.json()["detail"]


async def test_database_gone(gateway: TestGateway, http: httpx.AsyncClient, tmp_path: Path) -> None:
    await gateway.gateway.store.close()
    for file in tmp_path.glob("resihp.db*"):
        file.unlink()
    response = await http.get("/api/v1/jobs")
    assert response.status_code == 503
    assert "database" in response.json()["detail"]


async def test_probes_and_metrics(http: httpx.AsyncClient) -> None:
    assert (await http.get("/livez")).status_code == 200
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()["database"]) == (503, "not asked yet")  # run_gateway was not there
    assert "resihp_gateway_bus_connected 1.0" in (await http.get("/metrics")).text


async def test_description_is_complete(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    operations = {(method, path) for path, item in document["paths"].items() for method in item}
    assert operations == {
        ("get", "/api/v1/jobs"),
        ("post", "/api/v1/jobs"),
        ("get", "/api/v1/jobs/{job}"),
        ("get", "/api/v1/jobs/{job}/devices"),
        ("post", "/api/v1/jobs/{job}/plans"),
        ("post", "/api/v1/jobs/{job}/faults"),
        ("post", "/api/v1/jobs/{job}/restarts"),
        ("post", "/api/v1/jobs/{job}/stop"),
        ("get", "/api/v1/plans"),
        ("get", "/api/v1/iterations"),
        ("get", "/api/v1/incidents"),
        ("get", "/api/v1/reconfigurations"),
        ("get", "/api/v1/reconfigurations/{reconfiguration_id}"),
        ("get", "/api/v1/reconfigurations/{reconfiguration_id}/plans.svg"),
        ("get", "/events"),
        ("get", "/asyncapi.json"),
        ("get", "/api/v1/audit"),
        ("get", "/api/v1/events"),
        ("get", "/api/v1/incidents/{incident_id}"),
        ("get", "/api/v1/jobs/{job}/devices/{rank}"),
        ("get", "/api/v1/jobs/{job}/decisions"),
        ("post", "/api/v1/jobs/{job}/validations"),
        ("get", "/api/v1/live"),
        ("get", "/api/v1/me"),
        ("get", "/api/v1/jobs/{job}/control"),
        ("post", "/api/v1/jobs/{job}/evict"),
        ("post", "/api/v1/jobs/{job}/readmit"),
        ("post", "/api/v1/jobs/{job}/threshold"),
        ("post", "/api/v1/jobs/{job}/undo"),
        ("post", "/api/v1/jobs/{job}/approve"),
        ("post", "/api/v1/jobs/{job}/hold"),
        ("post", "/api/v1/jobs/{job}/mode"),
        ("post", "/api/v1/jobs/{job}/veto"),
        ("post", "/api/v1/jobs/{job}/whatif"),
    }
    submit = document["paths"]["/api/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]
    assert submit["examples"]["small"]["value"]["parallel"] == {"tp": 2, "pp": 2, "dp": 2}
