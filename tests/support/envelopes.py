"""Small valid messages, for tests of transport."""

from __future__ import annotations

from resihp_messages import AnyEnvelope, Envelope
from resihp_messages.ack import PlanRejected
from resihp_messages.event import NodeLeft
from resihp_messages.report import IterationReport, NodeBeat
from resihp_messages.request import Reply, RequestStop

SOURCE, INCARNATION = "test", "i0"


def event(node: str = "n0", *, job: str = "demo", message_id: str | None = None) -> AnyEnvelope:
    """A stored event; `node` tells it apart."""
    return Envelope.of(NodeLeft(node=node), job=job, source=SOURCE, incarnation=INCARNATION, message_id=message_id)


def ack(reason: str, *, job: str = "demo") -> AnyEnvelope:
    """A stored acknowledgement; `reason` tells it apart."""
    body = PlanRejected(node="n0", reconfiguration_id="r0", reason=reason)
    return Envelope.of(body, job=job, source=SOURCE, incarnation=INCARNATION)


def beat(sequence: int) -> AnyEnvelope:
    """A heartbeat (not stored)."""
    body = NodeBeat(
        node="n0", sequence=sequence, period_s=0.1, host="h", comm_host="127.0.0.1", num_slots=1, store_address="x:1"
    )
    return Envelope.of(body, job="_fleet", source=SOURCE, incarnation=INCARNATION)


def report(iteration: int) -> AnyEnvelope:
    """An iteration report of a node with one rank."""
    body = IterationReport(
        node="n0",
        iteration=iteration,
        ranks=(0,),
        step_s=(0.1,),
        forward_s=(0.03,),
        backward_s=(0.06,),
        tp_wait_s=(0.0,),
        pp_wait_s=(0.0,),
        dp_wait_s=(0.0,),
        tokens=(128,),
        sum_sq_len=(4096,),
        rss_bytes=(1 << 20,),
        loss=5.5,
        global_tokens=128,
        samples_expected=4,
        samples_once=4,
    )
    return Envelope.of(body, job="demo", source=SOURCE, incarnation=INCARNATION)


def stop_request(reason: str = "operator", *, job: str = "demo") -> AnyEnvelope:
    return Envelope.of(RequestStop(reason=reason), job=job, source=SOURCE, incarnation=INCARNATION)


def reply(*, accepted: bool, reason: str = "", to: AnyEnvelope) -> AnyEnvelope:
    body = Reply(accepted=accepted, reason=reason)
    return Envelope.of(body, job=to.job, source=SOURCE, incarnation=INCARNATION, correlation_id=to.message_id)


def node_of(envelope: AnyEnvelope) -> str:
    """The name that `event` was given."""
    assert isinstance(envelope.body, NodeLeft)
    return envelope.body.node
