"""Trials: random jobs with random changes and faults, driven without a control plane (`resihp verify --random`).

Real workers on a real zygote and store; only the agents and the scheduler are played, by `TrainerJob`.
"""
