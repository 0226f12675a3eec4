"""Large payloads: how they are cut into pieces, checked, and staged before their message exists.

Nothing here knows where a store keeps the pieces.
Start with `pieces.py`; `staging.py` has the writer that each store completes.
"""
