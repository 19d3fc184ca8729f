"""REST and server-sent events: reads the database and the event stream; what changes anything goes to the scheduler.

Errors leave as RFC 9457 problem details (`problems`).
"""
