"""`python -m resihp_agent`: one agent per node. Settings: `RESIHP_AGENT_*`."""

from __future__ import annotations

import sys

from resihp_agent.bootstrap import bootstrap
from resihp_agent.errors import AgentError
from resihp_agent.settings import AgentSettings
from resihp_chassis import Service, run_service

_EXIT_CANNOT_GO_ON = 2


def main() -> int:
    """Exit status 2, with one line, if the agent cannot start or cannot go on; a supervisor may start it again."""
    fatal: list[AgentError] = []

    async def serve(service: Service[AgentSettings]) -> None:
        try:
            await bootstrap(service.settings, service=service).run()
        except AgentError as error:
            if not service.started:
                raise
            fatal.append(error)

    status = run_service("agent", AgentSettings, serve, startup_errors=(AgentError,))
    if fatal:
        print(f"resihp agent: {fatal[0]}", file=sys.stderr, flush=True)
        return _EXIT_CANNOT_GO_ON
    return status


if __name__ == "__main__":
    sys.exit(main())
