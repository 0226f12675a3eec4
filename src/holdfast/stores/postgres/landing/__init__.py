"""Calls that were logged by the fast path, stored in the databases exactly once.

Nothing here reads or writes the log itself.
Start reading at `land`.
"""
