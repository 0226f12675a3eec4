"""Work on a store's files without being its writer: backups, read-only opening, resharding.

Never changes the files of a store that another process has open.
Start with `read_only.py`.
"""
