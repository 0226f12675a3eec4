"""The door of the framed protocol (docs/framed.md): any number of calls at once on one connection.

It speaks frames and decides nothing. Start with `connection.py`.
"""
