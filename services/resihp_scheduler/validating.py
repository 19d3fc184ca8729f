"""Probes of suspected devices and links, on an operator's request."""

from __future__ import annotations

from resihp_messages import command
from resihp_messages.request import Reply, RequestValidation
from resihp_plan.probing import probing
from resihp_scheduler.asked import Asked, refused


async def validate_devices(asked: Asked) -> Reply:
    """Every rank of the plan in force gets the order: the vote of an iteration starts the probes everywhere at once."""
    body, situation, term = asked.envelope.body, asked.situation, asked.term
    assert isinstance(body, RequestValidation)
    plan = situation.plan_in_force()
    try:
        chosen = probing(plan, body.ranks)
    except ValueError as error:
        return refused(str(error))
    for node, devices in situation.nodes_of(r for r in plan.world if r in situation.alive).items():
        order = command.ValidateDevices(
            node=node,
            token=term.token,
            agent_incarnation=devices[0].incarnation,
            validation_id=asked.envelope.message_id,
            ranks=chosen.ranks,
            links=chosen.links,
        )
        sent = term.envelope(
            order, job=situation.name, epoch=situation.newest_epoch, correlation_id=asked.envelope.message_id
        )
        await asked.work.send(sent, detail=node)
    return Reply(accepted=True)
