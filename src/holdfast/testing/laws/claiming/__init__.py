"""Laws of claims: their order, message groups, waiting claims, owners and numbered claims.

A law must not depend on a particular store: it uses only the public async API and the subject's clock.
Start in `order.py`.
"""
