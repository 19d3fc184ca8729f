"""How long the loss of a rank stops the engine, without bus and services, and beside it torchft's loss of a replica."""
