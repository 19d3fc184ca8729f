"""Measures detection: generated fleets, real traces, baselines on the same streams, cost. `python -m
benchmarks.detection`.
"""
