"""Encode and decode the frames, calls and results of the framed protocol (docs/framed.md).

Shared by the framed door and its client; does no I/O and makes no decisions.
Start with `frames.py`, then `calls.py` and `answers.py`.
"""
