"""Admission of calls: rates, limits on concurrent calls, and fair turns between tenants.

Nothing here knows a protocol or a concrete store.
Start with `admission.py`.
"""
