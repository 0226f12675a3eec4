"""The embedded store beside raw RocksDB writes and beside a sketch of a log-first engine.

Measures and prints; asserts nothing.
Start with `store.py`.
"""
