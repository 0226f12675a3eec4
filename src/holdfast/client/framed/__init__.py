"""The client over the framed protocol (docs/framed.md): many calls on one connection, or one socket for each thread.

It must not decide what is retried; `client/remote` does.
Start with `calls.py`.
"""
