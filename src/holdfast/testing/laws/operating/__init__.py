"""Laws of operation: listings, bulk verbs, the journal, schedules and forked processes.

A law must not depend on a particular store: it uses only the public async API and the subject's clock.
Start in `operators.py`.
"""
