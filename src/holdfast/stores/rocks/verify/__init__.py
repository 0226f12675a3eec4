"""`holdfast verify`: every invariant of a store, checked against a full scan.

Writes nothing, and repairs nothing.
Start with `store_check.py`.
"""
