"""The words and rules that all other parts share: messages, leases, policies, requests, responses and errors.

No I/O, no clock, no randomness and no asyncio: each function is given the time and the random numbers it needs.
Start with `message.py` and `rules/transitions.py`.
"""
