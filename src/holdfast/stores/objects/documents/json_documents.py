"""Documents in JSON, for people to read: tenants, policies, states. Each has a nonce, new with every write."""

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
    nonce: str = ""


class TenantsDocument(JsonDocument, frozen=True, kw_only=True):
    """Every tenant's number."""

    tenants: dict[str, int] = {}


class TenantDocument(JsonDocument, frozen=True, kw_only=True):
    tenant_id: int
    config: TenantConfig = TenantConfig()
    next_queue_id: int = 1
    queues: dict[str, int] = {}


class QueueDocument(JsonDocument, frozen=True, kw_only=True):
    queue_id: int
    policy: QueuePolicy = QueuePolicy()
    is_paused: bool = False
    drain_until: int | None = None
    # There is no such queue any more; another of its name is written over this.
    is_deleted: bool = False


class MessageStateDocument(JsonDocument, frozen=True, kw_only=True):
    """A message's state document. Each claim writes it anew, so that nobody writes who read it before."""

    version: int
    etag: int = 0
    has_document: bool = False
    document: msgspec.Raw = msgspec.Raw(b"null")
    progress: Progress | None = None


class JournalDocument(JsonDocument, frozen=True, kw_only=True):
    emptied_upto: int = 0


P = TypeVar("P", bound=JsonDocument)


class ReadJsonDocument(NamedTuple, Generic[P]):
    paper: P
    etag: str


class JsonDocuments:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def read(self, key: str, kind: type[P]) -> ReadJsonDocument[P] | None:
        found = await read_object(self._bucket, key)
        if found is None:
            return None
        try:
            return ReadJsonDocument(msgspec.json.decode(found.content, type=kind), found.stamp.etag)
        except msgspec.MsgspecError as error:
            raise StoreUnavailable(f"{key} is damaged ({error}): mend it, or restore a backup") from None

    async def write(self, key: str, paper: P, held: ReadJsonDocument[P] | None) -> ReadJsonDocument[P]:
        """Where `held` is what stands there; None: nothing does. `PreconditionFailed`, `StoreUnavailable`."""
        paper = replace(paper, nonce=new_nonce().hex())
        raw = msgspec.json.format(msgspec.json.encode(paper), indent=1)
        try:
            if held is None:
                stamp = await self._bucket.create(key, raw)
            else:
                stamp = await self._bucket.replace(key, raw, held.etag)
        except (PreconditionFailed, Unanswered) as error:
            there = await self.read(key, type(paper))
            if there is not None and there.paper.nonce == paper.nonce:
                return there
            if isinstance(error, PreconditionFailed):
                raise PreconditionFailed(str(error)) from None
            raise unavailable(error) from None
        return ReadJsonDocument(paper, stamp.etag)
