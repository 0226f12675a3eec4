"""A store over a directory or a bucket alone, shared by any number of processes without a server between them.

Nothing here may rely on one process seeing another's memory: every change is a conditional write of a document.
Start with `store.py`, then `documents/layout.py`; docs/stores/objects.md says how it holds together.
"""

from holdfast.stores.objects.buckets.bucket_url import make_bucket
from holdfast.stores.objects.store import ObjectStore

__all__ = ["ObjectStore", "make_bucket"]
