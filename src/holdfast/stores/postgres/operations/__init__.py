"""The operations of the contract: enqueue, claims, verdicts, bulk verbs, sweeps, ledgers, schedules, reads, journal.

Nothing here knows another server or a buffered log.
Start reading at `enqueue.py`, then `claims.py`.
"""
