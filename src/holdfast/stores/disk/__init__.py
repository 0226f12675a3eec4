"""Directory locks, syncs and free space: the services of the operating system for every store that writes files.

Nothing here knows about messages, or about the layout of a store's directory.
Start with `file_sync.py`; `directory_lock.py` keeps a second process out, `free_space.py` keeps a reserve free.
"""
