"""Tenants, queues, schedules and counters of one store.

Reads no messages. A queue is loaded when it is first used.
Start with `queue_catalog.py`.
"""
