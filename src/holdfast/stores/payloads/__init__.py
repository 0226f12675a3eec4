"""Large payloads: splitting them into pieces, checking the pieces, and writing them before their message exists.

Nothing here knows where a store keeps the pieces.
Start with `pieces.py`; `staging.py` has the writer that each store completes.
"""
