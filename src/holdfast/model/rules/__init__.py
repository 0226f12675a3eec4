"""The rules of messages: transitions, retries, idempotency keys, FIFO groups and claim ledgers.

Data and pure functions only: no I/O, and the time and random numbers are arguments.
Start with `transitions.py`, then `lifecycle.py`.
"""
