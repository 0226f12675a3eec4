"""The framed protocol: its frames, calls and answers as bytes, both ways (docs/framed.md).

Opens no connection: no I/O.
Start with `frames.py`.
"""
