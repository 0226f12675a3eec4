"""Laws of claims: their order, message groups, waiting and waking, and who holds what.

A law must not know a store: it uses the public async API and moves the subject's clock.
Start in `order.py`.
"""
