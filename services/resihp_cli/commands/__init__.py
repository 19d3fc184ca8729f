"""One module per command. Each exposes `run_<command>(...) -> exit code`."""
