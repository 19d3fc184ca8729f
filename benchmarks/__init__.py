"""Measurements of the whole system: `python -m benchmarks` runs all and writes `benchmarks/results/`. Never shipped."""
