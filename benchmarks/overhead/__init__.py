"""What telemetry, votes and fingerprints cost: paired iterations with and without them."""
