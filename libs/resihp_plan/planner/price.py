"""What a change of plan costs, and for how long its gain counts."""

from __future__ import annotations

from dataclasses import dataclass

from resihp_plan.cost import CostModel
from resihp_plan.planner.moving import Moving


@dataclass(frozen=True)
class Price:
    """What a change costs, and for how long its gain is expected to last."""

    horizon_s: float = 1800.0
    """Most slowdowns last 10 to 24 minutes (Greyhound); losses last longer than any change takes."""
    rebuild_s: float = 2.0
    """Process groups and warm-up, without moving state (paper, section 8: below 2 s)."""
    bytes_per_s: float | None = None
    """Of one device's receiving side; None: the cost model's."""
    state_bytes_per_parameter: float | None = None
    """None: parameter and both moments at the cost model's element size."""

    def change_s(self, moved: Moving, cost: CostModel) -> float:
        """Seconds without training. The rank that receives most determines the transfer."""
        each = self.state_bytes_per_parameter or 3.0 * cost.bytes_per_element
        return self.rebuild_s + moved.most * each / (self.bytes_per_s or cost.bytes_per_s)
