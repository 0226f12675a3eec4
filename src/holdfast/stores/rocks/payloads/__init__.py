"""Large payloads, kept in pieces, and payloads that arrive piece by piece.

Knows nothing of a message but its id.
Start with `pieces.py`.
"""
