"""The journal of the object store: events move from the messages' outboxes into numbered segments, each event once.

Nothing here changes a message, apart from emptying its outbox.
Start with `journal.py`; `outbox_scan.py` finds outboxes of other processes, `feed.py` reads segments in bulk.
"""
