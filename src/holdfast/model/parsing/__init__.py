"""Text and arguments from callers, parsed and checked.

Refuses bad input with an error that names the field, and keeps no state.
Start with `checks.py`.
"""
