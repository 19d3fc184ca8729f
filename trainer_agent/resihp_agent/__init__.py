"""One per node: starts, watches and fences worker processes, speaks for them on the bus. No torch, no database."""
