"""Serve Cap'n Proto RPC: connections, calls, and the methods of the schema.

Makes no decisions: a method reads its parameters, calls the service, and writes the results.
Start with `methods.py`, then `calls.py`.
"""
