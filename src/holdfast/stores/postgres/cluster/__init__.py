"""The databases of one store: connections, the owner of each queue, node numbers, vacuum, and resharding.

Nothing here changes a message; resharding copies rows as they are.
Start reading at `cluster.py`, then `database.py`.
"""
