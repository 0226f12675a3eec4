"""Find events in the outboxes of other processes, which died or have not collected them yet."""

from holdfast.model.names import QueueRef
from holdfast.stores.objects.buckets.bucket import ListedObject
from holdfast.stores.objects.buckets.retries import as_unavailable, run_concurrently
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.protobuf_mapping import decode_message
from holdfast.stores.objects.messages.messages import ObjectMessages, UncollectedMessage
from holdfast.stores.objects.operations.directory import ObjectDirectory

# Number of metadata objects that are remembered as having nothing to collect.
_REMEMBERED = 500_000


class OutboxScan:
    """A scan for uncollected events in all queues of a store."""

    def __init__(self, messages: ObjectMessages, directory: ObjectDirectory) -> None:
        self._messages = messages
        self._directory = directory
        # By key: the mark of the version whose outbox was empty.
        self._empty: dict[str, str] = {}

    async def scan(self, now_ms: int) -> None:
        """Add all metadata with events, or of ended messages, to `ObjectMessages.uncollected`. This lists everything,
        and reads what changed since the previous scan."""
        for tenant in await self._directory.names():
            for row in await self._directory.list_queues(tenant):
                for dead in (False, True):
                    await self._scan_prefix(layout.messages(row.ref, dead=dead), row.ref, now_ms)

    async def _scan_prefix(self, prefix: str, ref: QueueRef, now_ms: int) -> None:
        with as_unavailable():
            async for page in self._messages.documents.bucket.pages(prefix):
                unknown = [item for item in page if item.key.endswith(layout.METADATA) and not self._is_known(item)]
                if unknown:
                    await run_concurrently(unknown, lambda item: self._read(item, now_ms))

    def _is_known(self, item: ListedObject) -> bool:
        return item.key in self._messages.uncollected or self._empty.get(item.key) == item.mark

    async def _read(self, item: ListedObject, now_ms: int) -> None:
        current = await self._messages.documents.read(item.key)
        if current is None or current.is_busy or current.body is None:
            return
        body = decode_message(current.body)
        if body.is_gone or body.outbox:
            self._messages.uncollected.setdefault(current.key, UncollectedMessage(now_ms, body.is_gone))
        else:
            if len(self._empty) >= _REMEMBERED:
                self._empty.clear()
            self._empty[current.key] = current.version.mark
