"""Tenants and queues: their rows, this server's cache of them, and quotas shared by several databases.

Nothing here touches messages.
Start reading at `registry.py`.
"""
