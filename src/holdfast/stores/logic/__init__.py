"""The operations on messages, written once over the unit of work (`stores/unit.py`) for every store that has one.

Nothing here knows a store, reads a clock or commits: rules come from `model/`, and a store runs the functions in its
own atomic steps.
Start with `verdicts.py`, the shortest; `claims.py` is the most important one.
"""
