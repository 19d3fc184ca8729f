"""The scheduler: verdicts and acknowledgements in, plans and commands out; the only writer of the database.

One leader at a time (`leadership`); every decision is one fenced transaction with its events and commands (`changes`);
what it sends is relayed from the outbox (`relay`). `bootstrap.serve` is the way in.
"""
