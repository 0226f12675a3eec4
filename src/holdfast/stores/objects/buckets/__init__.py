"""Directories and cloud buckets behind one interface: whole objects, conditional writes, listings.

Nothing here knows messages or documents.
Start with `bucket.py`, the interface; `disk.py` and `cloud.py` implement it.
"""
