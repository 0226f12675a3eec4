"""Laws of calls: what goes in comes out, identities and payloads, refusals and limits.

A law must not know a store: it uses the public async API and moves the subject's clock.
Start in `operations.py`.
"""
