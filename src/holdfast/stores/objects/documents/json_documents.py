"""Documents in JSON, readable by operators: tenants, policies, states. Each has a nonce, new with every write.

How to change this format: add fields with defaults; readers ignore unknown fields, and a version that does not know a
field drops it when it rewrites the document. To rename a field or change its type, add a new one, write both for one
release, and read the old one while any store may still have it. The keys stay as `layout.py` lists them.
"""

from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.model.errors import StoreUnavailable
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.requests import Progress
from holdfast.stores.objects.buckets.bucket import Bucket, PreconditionFailed, Unanswered
from holdfast.stores.objects.buckets.retries import read_object, unavailable
from holdfast.stores.objects.documents.document_format import new_nonce


class JsonDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON document. The nonce lets a writer recognise its own write after a lost response."""

    nonce: str = ""


class TenantsDocument(JsonDocument, frozen=True, kw_only=True):
    """The number of every tenant."""

    tenants: dict[str, int] = {}


class TenantDocument(JsonDocument, frozen=True, kw_only=True):
    """A tenant: its configuration, and the number of each of its queues."""

    tenant_id: int
    config: TenantConfig = TenantConfig()
    next_queue_id: int = 1
    queues: dict[str, int] = {}


class QueueDocument(JsonDocument, frozen=True, kw_only=True):
    """A queue."""

    queue_id: int
    policy: QueuePolicy = QueuePolicy()
    is_paused: bool = False
    drain_until: int | None = None
    # The queue was deleted. A new queue of this name replaces the document.
    is_deleted: bool = False
    # The queue may have messages that an earlier version named. Documents of that version do not have this field.
    may_have_format_1: bool = True


class MessageStateDocument(JsonDocument, frozen=True, kw_only=True):
    """A message's state document. Each claim rewrites it, so that a writer who read it before that fails."""

    version: int
    etag: int = 0
    has_document: bool = False
    document: msgspec.Raw = msgspec.Raw(b"null")
    progress: Progress | None = None


class JournalDocument(JsonDocument, frozen=True, kw_only=True):
    """The journal's head: the outboxes of all segments up to this one are emptied."""

    emptied_upto: int = 0


P = TypeVar("P", bound=JsonDocument)


class ReadJsonDocument(NamedTuple, Generic[P]):
    """A JSON document as it was read, with its ETag."""

    content: P
    etag: str


class JsonDocuments:
    """Reader and conditional writer of the JSON documents of a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def read(self, key: str, kind: type[P]) -> ReadJsonDocument[P] | None:
        """Return a document, or None if it does not exist. Raise `StoreUnavailable` if it is damaged."""
        found = await read_object(self._bucket, key)
        if found is None:
            return None
        try:
            return ReadJsonDocument(msgspec.json.decode(found.content, type=kind), found.version.etag)
        except msgspec.MsgspecError as error:
            raise StoreUnavailable(f"{key} is damaged ({error}): repair it or restore a backup") from None

    async def write(self, key: str, document: P, current: ReadJsonDocument[P] | None) -> ReadJsonDocument[P]:
        """Write a document if `current` is still the stored one (None: if none exists), and return it as written.

        Raise `PreconditionFailed` if another write came first, and `StoreUnavailable`.
        """
        document = replace(document, nonce=new_nonce().hex())
        raw = msgspec.json.format(msgspec.json.encode(document), indent=1)
        try:
            if current is None:
                version = await self._bucket.create(key, raw)
            else:
                version = await self._bucket.replace(key, raw, current.etag)
        except (PreconditionFailed, Unanswered) as error:
            there = await self.read(key, type(document))
            if there is not None and there.content.nonce == document.nonce:
                return there
            if isinstance(error, PreconditionFailed):
                raise PreconditionFailed(str(error)) from None
            raise unavailable(error) from None
        return ReadJsonDocument(document, version.etag)
