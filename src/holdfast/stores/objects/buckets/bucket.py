"""The interface between the object store and a directory or a bucket.

Every implementation guarantees: a write is durable when it returns; of concurrent conditional writes to one key exactly
one succeeds; a read returns the latest write. Listings may be stale. The store uses them to find keys, and reads an
object before it relies on it.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

# Number of objects on each page of a listing except the last.
PAGE = 1_000


class ObjectMissing(Exception):
    """The bucket has no object with this key."""


class PreconditionFailed(Exception):
    """The condition of a write was not met because another write came first.

    The bucket may also report this for a write that succeeded and whose response was lost, when the client library
    retries it. A caller that needs to know reads the object.
    """


class Unanswered(Exception):
    """A request failed, or its response was lost. A write may have been carried out all the same."""


class ObjectVersion(NamedTuple):
    """The version of an object: `etag` is compared by conditional writes, `mark` is shown by listings."""

    etag: str
    mark: str


class StoredObject(NamedTuple):
    """The content of an object, and its version."""

    content: bytes
    version: ObjectVersion


class ListedObject(NamedTuple):
    """An object in a listing. `mark` differs between any two versions of the object; `changed_at` is in milliseconds
    since 1970."""

    key: str
    mark: str
    size: int
    changed_at: int


class ObjectUpload(Protocol):
    """An object being uploaded in parts. It does not exist until `finish` returns."""

    async def write(self, part: bytes) -> None:
        """Add a part."""

    async def finish(self) -> None:
        """Create the object, replacing an existing one."""

    async def abandon(self) -> None:
        """Drop the parts. The object is not created."""


class Bucket(Protocol):
    """A store of whole objects by key. Every method raises `Unanswered` if its request fails."""

    # For messages and logs: file:///dir, s3://bucket/prefix.
    url: str
    # True if `delete_exactly` compares and deletes atomically. Otherwise an object written in between is deleted.
    deletes_exactly: bool
    # A multi-document step without a record is considered abandoned after this time.
    step_timeout_ms: int
    # Minimum time between two scans of all outboxes on behalf of journal readers; a scan lists the whole store.
    outbox_scan_ms: int
    # Resolution of the times that the bucket records for writes.
    time_resolution_ms: int

    async def open(self) -> None:
        """Check that the bucket can be used; raise `Unanswered` with the reason if not."""

    async def close(self) -> None:
        """Release threads and connections."""

    async def read(self, key: str) -> StoredObject:
        """Return an object. Raise `ObjectMissing`."""

    async def written_at(self, key: str) -> int:
        """Return when the object was written, in milliseconds since 1970 by the bucket's clock. Raise
        `ObjectMissing`."""

    async def create(self, key: str, content: bytes) -> ObjectVersion:
        """Create an object. Raise `PreconditionFailed` if the key exists."""

    async def replace(self, key: str, content: bytes, etag: str) -> ObjectVersion:
        """Replace the version `etag` of an object. Raise `PreconditionFailed` if it is not the current version, or does
        not exist."""

    async def put(self, key: str, content: bytes) -> ObjectVersion:
        """Write an object unconditionally."""

    async def copy(self, source: str, target: str) -> None:
        """Copy an object, replacing the target unconditionally. Raise `ObjectMissing` if there is no source."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete these objects; missing ones are ignored."""

    async def delete_exactly(self, key: str, etag: str) -> None:
        """Delete the object if `etag` is its current version; otherwise do nothing."""

    def pages(self, prefix: str, after: str | None = None) -> AsyncIterator[list[ListedObject]]:
        """Yield the objects whose keys begin with `prefix` and follow `after`, in order of key. Most pages but the last
        have `PAGE` objects."""

    async def upload(self, key: str) -> ObjectUpload:
        """Begin the upload of an object in parts."""

    def stream(self, key: str, start: int) -> AsyncIterator[bytes]:
        """Yield the object's content from byte `start` on, in parts of at most some megabytes. Raise
        `ObjectMissing`."""
