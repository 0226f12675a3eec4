"""From a URL to the bucket that it names."""

import os
from urllib.parse import unquote, urlsplit

from holdfast.model.errors import InvalidArgument
from holdfast.stores.objects.bucket import Bucket, Unanswered
from holdfast.stores.objects.cloud import CloudBucket
from holdfast.stores.objects.disk import DiskBucket


def make_bucket(url: str, *, syncs: bool = True) -> Bucket:
    """`file:///dir`, or a cloud's: who asks is said by that cloud's own variables and files."""
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise InvalidArgument(f"{url!r} has a query: an object store's URL is only where it lies", field="url")
    if parts.scheme.lower() == "file":
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or path in ("", "/"):
            raise InvalidArgument(f"{url!r} names no directory: write file:///path/to/it", field="url")
        return DiskBucket(os.path.normpath(path), syncs=syncs)
    if not parts.netloc:
        raise InvalidArgument(f"{url!r} names no bucket: write {parts.scheme}://bucket/prefix", field="url")
    try:
        return CloudBucket(url)
    except Unanswered as error:
        raise InvalidArgument(f"{url!r} is not accepted: {error}", field="url") from None
