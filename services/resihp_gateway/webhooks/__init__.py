"""Webhooks: events of the bus as signed HTTP requests, at least once, with an id by which receivers know repeats.

`config` reads the file, `message` writes the request, `notifier` delivers. The signature is that of the Standard
Webhooks specification (standardwebhooks.com), so receivers can use its libraries.
"""
