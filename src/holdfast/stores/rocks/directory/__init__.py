"""The tenants, queues, schedules and counters of a store, and the facts it keeps about itself.

Reads no messages. A queue is loaded when it is first used.
Start with `queue_catalog.py`.
"""
