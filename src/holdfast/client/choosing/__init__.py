"""The choice between the framed protocol and HTTP for a client that knows the URL of the HTTP port.

It must not speak a protocol itself; `client/framed` and `client/http` do.
Start with `transport.py`.
"""
