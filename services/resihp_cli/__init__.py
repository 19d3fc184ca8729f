"""`resihp ...`: the commands, the local supervisor that runs everything on one machine, and the views of a terminal.

The CLI is a client of the gateway like any other; only `history` and `doctor` also read the database of a run directly
(through `resihp_store.queries`), because they must work when nothing runs any more.
Errors: `CliError` (one clear line, exit code 2).
"""
