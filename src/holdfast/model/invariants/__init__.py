"""The invariants of a store: what its messages, journal and side records must satisfy, as pure functions.

Nothing here reads a store. The checks of `holdfast verify` read the records of their store and pass them here.
Start with `damage.py`, which names every kind of finding; then `messages.py`.
"""
