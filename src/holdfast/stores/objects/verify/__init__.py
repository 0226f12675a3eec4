"""`holdfast verify` for the object store: every rule of the layout, checked against a full listing.

Nothing here writes to the store.
Start with `store.py`, which calls the other checks in order.
"""
