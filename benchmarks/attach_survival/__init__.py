"""A plain DDP job loses one of its ranks: under `resihp launch`, and under torchft."""
