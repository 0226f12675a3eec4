"""Databases of the legacy layout (SPEC 4.7): reading them, and migrating them to a store in the same directory.

Only this folder knows the legacy layout. It is never written, so its format does not change.
Start with `legacy_database.py`, then `migration.py`.
"""
