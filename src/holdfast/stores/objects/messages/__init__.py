"""Messages of the object store: what a process knows of them, and how their documents are read, changed and moved.

Nothing here decides about a message's life: `operations/` and `stores/logic/` do.
Start with `messages.py`; `queue_windows.py` has each queue's in-memory window and the passes that fill it.
"""
