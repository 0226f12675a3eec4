"""The unit of work: one transaction that reads messages, lets the shared logic decide, and writes the changes.

Nothing here states a rule of the life cycle; the statements of `shortcuts` repeat rules for speed and are tested
against the shared logic.
Start reading at `runner.py`, then `unit.py`; the order of all locks is in `locks.py`.
"""
