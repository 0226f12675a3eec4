"""Payloads stored in pieces: reading, copying and deleting them, and uploads that are still arriving.

Nothing here decides which message a payload belongs to; the unit of work does.
Start reading at `pieces.py`.
"""
