"""Laws of calls: enqueue and claim, names and ids, payloads, invalid calls, quotas and rate limits.

A law must not depend on a particular store: it uses only the public async API and the subject's clock.
Start in `operations.py`.
"""
