"""Laws of operators' work: listings, bulk verbs, the journal, schedules and forked processes.

A law must not know a store: it uses the public async API and moves the subject's clock.
Start in `operators.py`.
"""
