"""The queues, messages and tenants that programs use, with the same API over every transport, blocking and async.

It must not decide anything that the service decides: it parses arguments, makes calls and returns their results.
Start with `queue.py`, then `transport.py`, the interface to an embedded core or a server.
"""
