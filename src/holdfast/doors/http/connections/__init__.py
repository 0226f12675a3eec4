"""HTTP/1.1 on sockets: requests are read and parsed, responses written.

Knows no routes and no operations.
Start with `connection.py`, then `exchange.py`.
"""
