"""What can go wrong between a rank and the others."""

from __future__ import annotations


class LaunchError(Exception):
    """Training cannot go on."""


class LauncherGone(LaunchError):
    """`resihp launch` has died, or has told this rank to stop: nobody could say who is alive."""


class StateDiverged(LaunchError):
    """Ranks that committed the same steps hold different parameters."""


class RankLost(Exception):
    """The step is given up because a rank is gone; leaving `with step:` by it is how the step ends."""
