"""Recorded traces: files of other systems and our own documented columns -> records that detection takes."""

from resihp_cli.traces.read import read_trace
from resihp_cli.traces.trace import Trace

__all__ = ["Trace", "read_trace"]
