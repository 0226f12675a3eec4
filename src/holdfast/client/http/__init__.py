"""The client over HTTP/1.1: connections, requests and responses, on an event loop or in the calling threads.

It must not decide what is retried; `client/remote` does.
Start with `calls.py`.
"""
