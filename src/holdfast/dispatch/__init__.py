"""Waiting claims, watches, schedules and sweeps: everything that happens at a later time, or when a store changes.

Nothing here knows a caller, a protocol or a concrete store.
Start with `dispatcher.py`; `wakeups.py` shows what a store's notifications lead to.
"""
