"""Stored formats that more than one module reads: a message's record, and a logged enqueue.

Nothing here opens a file or a database; the formats of one store alone lie beside that store.
Start with `message_record.py`; `logged_enqueue.py` is the format of the write-ahead log and of Redis.
"""
