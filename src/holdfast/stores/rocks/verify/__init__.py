"""`holdfast verify`: checks of every invariant of a store by a full scan.

Nothing here writes to the store or repairs it.
Start with `store_check.py`.
"""
