"""The object store: a queue over a directory or a cloud bucket, shared by any number of processes without a server.

Nothing here may assume that a process sees another's memory: every change is a conditional write of a document.
Start with `store.py`, then `documents/layout.py`; docs/stores/objects.md explains the protocol.
"""

from holdfast.stores.objects.buckets.bucket_url import make_bucket
from holdfast.stores.objects.store import ObjectStore

__all__ = ["ObjectStore", "make_bucket"]
