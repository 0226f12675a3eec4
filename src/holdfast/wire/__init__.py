"""The shapes that cross the network, shared by doors and clients, and the table of operations.

Nothing here decides or does I/O. Start with `operations.py`: every operation is one row of it, and `http_routes.py`,
`capnp_arguments.py` and `framed_calls.py` derive the documents of the three wires from a row.
"""
