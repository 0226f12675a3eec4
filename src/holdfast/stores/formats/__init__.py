"""The stored formats that several modules read: the record of a message, and a logged enqueue.

Nothing here opens a file or a database. A format that only one store uses is defined in that store's folder.
Start with `message_record.py`; `logged_enqueue.py` is the format of the write-ahead log and of Redis.
"""
