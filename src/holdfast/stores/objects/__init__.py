"""The queue over nothing but a directory or a bucket; as many processes as you like share it."""

from holdfast.stores.objects.places import make_bucket
from holdfast.stores.objects.store import ObjectStore

__all__ = ["ObjectStore", "make_bucket"]
