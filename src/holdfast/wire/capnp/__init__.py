"""The Cap'n Proto schema, and its stream as both sides read and write it.

Only what needs the extra `capnp` imports this package's `schema.py`.
Start with `holdfast.capnp`.
"""
