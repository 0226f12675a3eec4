"""Parsers and checks of the text and the arguments that callers give.

They raise `InvalidArgument`, which names the field, and keep no state.
Start with `checks.py`.
"""
