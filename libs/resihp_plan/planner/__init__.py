"""Choose plans: the initial one, and the next one after a loss. Errors: `Infeasible` with a kind and a detail."""

from resihp_plan.planner.assumptions import Assumptions
from resihp_plan.planner.change import plan_change, step_s_at
from resihp_plan.planner.decision import Alternative, Decision, Infeasible, InfeasibleKind
from resihp_plan.planner.effort import Effort, Switches
from resihp_plan.planner.initial import plan_initial
from resihp_plan.planner.loss import plan_after_loss
from resihp_plan.planner.predict import Prediction, Predictor, predict
from resihp_plan.planner.price import Price

__all__ = [
    "Alternative",
    "Assumptions",
    "Decision",
    "Effort",
    "Infeasible",
    "InfeasibleKind",
    "Prediction",
    "Predictor",
    "Price",
    "Switches",
    "plan_after_loss",
    "plan_change",
    "plan_initial",
    "predict",
    "step_s_at",
]
