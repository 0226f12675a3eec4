"""Admission: rates, concurrency caps, quotas and turns between tenants.

Knows no protocol and no store.
Start with `admission.py`.
"""
