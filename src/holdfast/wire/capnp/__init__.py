"""Define the Cap'n Proto schema and the byte stream that its door and its client share.

Importing `schema.py` or `stream.py` requires the extra `capnp`; only code that needs it may do so.
Start with `holdfast.capnp`, then `schema.py` and `stream.py`.
"""
