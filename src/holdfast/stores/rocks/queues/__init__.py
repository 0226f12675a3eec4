"""The state of queues in memory, and the keys that each change of a message writes.

Makes no decision about a message's life: those rules are in `model/` and `stores/logic/`.
Start with `rocks_unit.py`, `unit_writes.py` and `queue_state.py`.
"""
