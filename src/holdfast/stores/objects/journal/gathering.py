"""Events that others left in outboxes: of processes that died, and of those that have not come to collect them yet."""

from holdfast.model.names import QueueRef
from holdfast.stores.objects.buckets.bucket import ListedObject
from holdfast.stores.objects.buckets.retries import answered, side_by_side
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.document_format import message_of
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.operations.directory import ObjectDirectory

# Metadata of which it is remembered that nothing waits in it.
_REMEMBERED = 500_000


class Gathering:
    def __init__(self, messages: ObjectMessages, directory: ObjectDirectory) -> None:
        self._messages = messages
        self._directory = directory
        # By key: the mark under which nothing waited in it.
        self._empty: dict[str, str] = {}

    async def gather(self, now_ms: int) -> None:
        """Look into every outbox of every queue: costs a listing, and a read of what has changed since the last."""
        for tenant in await self._directory.names():
            for row in await self._directory.list_queues(tenant):
                for dead in (False, True):
                    await self._gather(layout.messages(row.ref, dead=dead), row.ref, now_ms)

    async def _gather(self, prefix: str, ref: QueueRef, now_ms: int) -> None:
        with answered():
            async for page in self._messages.sheets.bucket.pages(prefix):
                unknown = [item for item in page if item.key.endswith(layout.METADATA) and not self._is_known(item)]
                if unknown:
                    await side_by_side(unknown, lambda item: self._look(item, now_ms))

    def _is_known(self, item: ListedObject) -> bool:
        return item.key in self._messages.dirty or self._empty.get(item.key) == item.mark

    async def _look(self, item: ListedObject, now_ms: int) -> None:
        held = await self._messages.sheets.read(item.key)
        if held is None or held.is_busy or held.body is None:
            return
        body = message_of(held.body)
        if body.is_gone or body.outbox:
            self._messages.dirty.setdefault(held.key, (now_ms, body.is_gone))
        else:
            if len(self._empty) >= _REMEMBERED:
                self._empty.clear()
            self._empty[held.key] = held.stamp.mark
