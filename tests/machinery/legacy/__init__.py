"""Databases of the legacy layout for the tests of their migration, and kills during that migration.

It must not use the code under test: databases are written with RocksDB and pycapnp alone.
Start in `databases.py`.
"""
