"""Large payloads, which are kept in pieces, and uploads, which arrive in parts before their message exists.

Nothing here knows anything of a message but its id.
Start with `pieces.py`; `staging.py` has the uploads.
"""
