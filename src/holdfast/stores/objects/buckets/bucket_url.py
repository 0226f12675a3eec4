"""Create a bucket from its URL."""

from urllib.parse import unquote, urlsplit

from holdfast.model.errors import InvalidArgument
from holdfast.stores.objects.buckets.bucket import Bucket, Unanswered
from holdfast.stores.objects.buckets.cloud import CloudBucket
from holdfast.stores.objects.buckets.disk import DiskBucket


def make_bucket(url: str, *, syncs: bool = True) -> Bucket:
    """Return the bucket for `file:///dir`, `s3://…`, `az://…` or `gs://…`. Credentials come from the cloud's own
    variables and files.

    With `syncs` False, writes to a directory return before they are synced to disk. Raise `InvalidArgument` if the URL
    is not accepted.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        # The URL is not quoted: it may contain a secret.
        raise InvalidArgument(
            "an object store's URL must not contain a user or password; set the cloud's own variables", field="url"
        )
    if parts.query or parts.fragment:
        raise InvalidArgument("an object store's URL must not contain a query or a fragment", field="url")
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
        raise InvalidArgument(f"{url!r} is not a valid bucket URL: {error}", field="url") from None
