"""Locks, syncs and free space: what every store that writes files needs of the operating system.

Nothing here knows messages, or the layout of a store's directory.
Start with `file_sync.py`; `directory_lock.py` keeps a second process out, `free_space.py` keeps a reserve free.
"""
