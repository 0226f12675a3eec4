"""The stores, which keep messages across a crash, and the contract that all of them obey.

Nothing here decides who may call or who waits, and no store imports another.
Start with `contract.py`; `unit.py` and `logic/` have the operations that the stores share.
"""
