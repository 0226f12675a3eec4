"""Databases of the legacy layout (SPEC 4.7): reading them, using them while their messages are moved (`online/`), and
migrating them to a store in the same directory.

Only this folder knows the legacy layout. Nothing is ever written in it, so its format does not change.
Start with `legacy_database.py`, then `online/` and `migration.py`.
"""
