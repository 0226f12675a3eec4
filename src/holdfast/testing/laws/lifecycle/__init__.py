"""Laws of the life cycle of a message: states, leases, retries, dead letters and state documents.

A law must not depend on a particular store: it uses only the public async API and the subject's clock.
Start in `states.py`.
"""
