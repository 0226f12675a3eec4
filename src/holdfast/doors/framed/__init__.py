"""Serve the framed protocol (docs/framed.md), in which one connection carries any number of calls at once.

It makes no decisions: a handler reads a call, calls the service, and writes the result.
Start with `connection.py`, then `call.py`.
"""
