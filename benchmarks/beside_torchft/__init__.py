"""The same loss of a rank under torchft: its replicas run in an environment of their own, in turns with our side."""
