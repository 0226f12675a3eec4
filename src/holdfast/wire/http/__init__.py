"""The HTTP door's documents, shared by the door and the client.

Opens no connection and decides nothing.
Start with `bodies.py`.
"""
