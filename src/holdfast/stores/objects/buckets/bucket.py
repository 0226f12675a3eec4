"""What the store asks of a directory or a bucket: whole objects, made only where there is none, or put in the place of
exactly the one that was read.

Every bucket gives these: a write is durable when it returns, of any number of concurrent conditional writes to one key
one succeeds, and a read sees the latest write. A listing may be late: what it says is looked at, never relied on.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

# Objects on a page of a listing, unless it is the last.
PAGE = 1_000


class ObjectMissing(Exception):
    """There is no object of this key."""


class PreconditionFailed(Exception):
    """The condition of a write does not hold: another was there first. Or this very write was, and its answer was
    lost: who needs to know reads the object."""


class Unanswered(Exception):
    """The bucket did not answer, or with an error. A write may have been carried out."""


class ObjectVersion(NamedTuple):
    """Of one state of an object. `etag` is what a conditional write is given; `mark` is what a listing shows."""

    etag: str
    mark: str


class Read(NamedTuple):
    content: bytes
    stamp: ObjectVersion


class ListedObject(NamedTuple):
    """An object as a listing shows it. `mark` differs from that of every other state of the object."""

    key: str
    mark: str
    size: int
    changed_at: int


class ObjectUpload(Protocol):
    """An object on its way; there is none until it is finished."""

    async def write(self, part: bytes) -> None: ...

    async def finish(self) -> None: ...

    async def abandon(self) -> None: ...


class Bucket(Protocol):
    # For people: file:///dir, s3://bucket/prefix.
    url: str
    # `delete_exactly` is one step with its comparison. If not, whoever writes in between is deleted.
    deletes_exactly: bool
    # A step over several documents that takes longer than this is thought dead.
    patience_ms: int
    # How often it is worth its cost to list everything for a reader of the journal.
    gather_ms: int
    # In what steps the bucket tells when an object was written.
    time_step_ms: int

    async def open(self) -> None:
        """`Unanswered` if it cannot be used, saying why."""

    async def close(self) -> None: ...

    async def read(self, key: str) -> Read:
        """`ObjectMissing`."""

    async def written_at(self, key: str) -> int:
        """When the object was written, in milliseconds since 1970 by the bucket's own clock. `ObjectMissing`."""

    async def create(self, key: str, content: bytes) -> ObjectVersion:
        """`PreconditionFailed` if there is one."""

    async def replace(self, key: str, content: bytes, etag: str) -> ObjectVersion:
        """`PreconditionFailed` if that is no longer the one, or if there is none."""

    async def put(self, key: str, content: bytes) -> ObjectVersion:
        """Whatever is there."""

    async def copy(self, source: str, target: str) -> None:
        """Whatever is there. `ObjectMissing`."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Those that are there."""

    async def delete_exactly(self, key: str, etag: str) -> None:
        """If it is still this one."""

    def pages(self, prefix: str, after: str | None = None) -> AsyncIterator[list[ListedObject]]:
        """By key, beginning behind `after`; of `PAGE` each, mostly, but for the last."""

    async def upload(self, key: str) -> ObjectUpload: ...

    def stream(self, key: str, start: int) -> AsyncIterator[bytes]:
        """From byte `start` on, some megabytes at a time. `ObjectMissing`."""
