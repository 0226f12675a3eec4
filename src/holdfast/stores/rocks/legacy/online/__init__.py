"""Using a database of the legacy layout at once, while its messages are moved into the new layout (SPEC 9.9).

Nothing here deletes a message from the old database before the new one has it on disk.
Start with `adoption.py`, then `moving_store.py` and `mover.py`.
"""
