"""The state of queues in memory, and the keys that each change of a message writes.

Decides nothing about a message's life: the rules are in `model/` and `stores/logic/`.
Start with `queue_state.py` and `rocks_unit.py`.
"""
