"""Commands that work on a store's files or databases directly: `db`, `verify` and `backup`.

They must not import a store before the command runs.
Start reading at `db.py`.
"""
