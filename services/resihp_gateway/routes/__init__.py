"""One module per group of resources; each exposes a `router`."""
