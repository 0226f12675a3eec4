"""Checks of a store's directory before it is opened, and repair of files after a crash.

Never discards data that was synced; it refuses to open the store instead.
Start with `opening.py`.
"""
