"""Attach mode: jobs that somebody else launched. Their ranks are watched, never started, fenced or changed.

Data flow: frames of the ranks (`listener`) -> what is known of them (`rank`, `job`) -> what is concluded on this node
(`judge`, pure) -> the same events, acknowledgements, reports and beats as of the built-in engine (`jobs`).
"""

from resihp_agent.attach.jobs import AttachedJobs
from resihp_agent.attach.listener import AttachListener

__all__ = ["AttachListener", "AttachedJobs"]
