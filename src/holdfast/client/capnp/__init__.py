"""The client over Cap'n Proto RPC, on an event loop; the blocking API runs one in a thread.

It must not decide what is retried; `client/remote` does.
Start with `calls.py`.
"""
