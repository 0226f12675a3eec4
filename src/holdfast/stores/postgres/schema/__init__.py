"""The tables: migrations, the SQL statements by name, and the conversion of rows of `items` to messages and back.

Nothing here opens a connection or decides anything.
Start reading at `statements.py`, then `sql/` and `migrations/`.
"""
