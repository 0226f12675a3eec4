"""Operations on the files of a store that is not open here: backups, read-only opening, resharding.

Nothing here changes the files of a store that another process has open.
Start with `read_only.py`.
"""
