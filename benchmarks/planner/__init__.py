"""What the planner is worth: the paper's settings, policies side by side, planning time, batch slicing."""
