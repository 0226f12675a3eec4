"""Speak HTTP/1.1 on sockets: read and parse requests, run calls, write responses.

Knows no routes and no operations.
Start with `connection.py`, then `exchange.py`.
"""
