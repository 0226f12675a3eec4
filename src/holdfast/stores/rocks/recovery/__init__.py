"""Checks of a directory before it is opened, and the repair of what a crash left behind.

Never drops anything that was synced: it refuses to open instead.
Start with `opening.py`.
"""
