"""The client over the framed protocol (docs/framed.md): many calls on one connection, or a socket for each thread.

It must not decide what is tried again: `client/remote` does. Start with `calls.py`.
"""
