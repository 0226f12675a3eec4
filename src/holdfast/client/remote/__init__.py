"""The client's side of every wire: calls are repeated where that is safe, shared, left and given back.

A protocol only encodes: it writes requests, reads answers, and knows nothing of retries. Start with `calls.py`.
"""
