"""From a URL to the bucket that it names."""

from urllib.parse import unquote, urlsplit

from holdfast.model.errors import InvalidArgument
from holdfast.stores.objects.buckets.bucket import Bucket, Unanswered
from holdfast.stores.objects.buckets.cloud import CloudBucket
from holdfast.stores.objects.buckets.disk import DiskBucket


def make_bucket(url: str, *, syncs: bool = True) -> Bucket:
    """`file:///dir`, or a cloud's: who asks is said by that cloud's own variables and files."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        # Not shown: it may be a secret.
        raise InvalidArgument(
            "an object store's URL has no user or password in it: give them by the cloud's own variables", field="url"
        )
    if parts.query or parts.fragment:
        raise InvalidArgument("an object store's URL has no query: it only says where the store lies", field="url")
    if parts.scheme.lower() == "file":
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or path in ("", "/"):
            raise InvalidArgument(f"{url!r} names no directory: write file:///path/to/it", field="url")
        return DiskBucket(path, syncs=syncs)
    if not parts.netloc:
        raise InvalidArgument(f"{url!r} names no bucket: write {parts.scheme}://bucket/prefix", field="url")
    try:
        return CloudBucket(url)
    except Unanswered as error:
        raise InvalidArgument(f"{url!r} is not accepted: {error}", field="url") from None
