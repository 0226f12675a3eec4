"""Keep the promise of an enqueue across a crash: the contract that every store obeys, and the stores.

Nothing here decides who may call or who waits, and no store imports another.
Start with `contract.py`; `unit.py` and `logic/` have the operations that the stores share.
"""
