"""The rules of a message's life, as data and pure functions.

No I/O, no clock and no randomness: both are arguments.
Start with `lifecycle.py`.
"""
