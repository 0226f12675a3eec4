"""Tenants and queues: their rows, what this server remembers of them, and quotas shared by several databases.

Nothing here touches messages.
Start reading at `registry`.
"""
