"""Databases of the legacy layout (SPEC 4.7): reading them, and migrating them in place.

Nothing outside this folder knows that layout.
Start with `legacy_database.py`, then `migration.py`.
"""
