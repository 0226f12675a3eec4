"""Serve HTTP/1.1: routes, request and response documents, health, and the OpenAPI document.

Makes no decisions: a handler decodes a request, calls the service once, and encodes the result.
Start with `app.py`, then `operations/messages.py`; `connections/` reads and writes the sockets.
"""
