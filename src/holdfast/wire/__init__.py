"""Define the table of operations and the documents that cross the network, shared by doors and clients.

Makes no decisions; apart from the Cap'n Proto stream, does no I/O.
Start with `operations.py`; `http/routes.py`, `capnp/arguments.py` and `framed/calls.py` derive each wire's documents.
"""
