"""Landing: calls that the fast path has logged are stored in the databases exactly once.

Nothing here reads or writes the log itself.
Start reading at `land.py`.
"""
