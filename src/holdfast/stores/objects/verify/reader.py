"""Read documents as they are stored, without the actions of other readers, which abort abandoned steps."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar
from zlib import crc32

import msgspec

from holdfast.clock import Clock
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.objects.buckets.bucket import Bucket, ObjectMissing
from holdfast.stores.objects.buckets.retries import run_concurrently
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import StepBody
from holdfast.stores.objects.documents.document_format import decode_document
from holdfast.stores.objects.documents.json_documents import P
from holdfast.stores.objects.documents.protobuf_mapping import BodyDecoder

T = TypeVar("T")

_AT_ONCE = 16

_decode_step = BodyDecoder(StepBody)


class VerifyReader:
    """A reader of a bucket that never writes to it."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self.bucket = bucket
        self.clock = clock
        self.now_ms = clock.now_ms()

    async def each(self, what: Iterable[T], do: Callable[[T], Awaitable[None]]) -> None:
        """Call `do` for all items, several at a time."""
        await run_concurrently(what, do, _AT_ONCE)

    async def read_document(self, key: str) -> bytes | None:
        """Return the visible body of a document, or None. Raise `StoreUnavailable`, naming the key, if it is
        damaged."""
        while True:
            try:
                raw = (await self.bucket.read(key)).content
            except ObjectMissing:
                return None
            document = decode_document(key, raw)
            if document.step is None:
                return document.body or None
            try:
                record = (await self.bucket.read(layout.step(document.step))).content
            except ObjectMissing:
                # The step was finished between the two reads. If the document still names it, it was never decided.
                again = await self._step_named(key)
                if again is not None and again != document.step:
                    continue
                return document.prior or None
            is_committed = _decode_step(decode_document(layout.step(document.step), record).body).is_committed
            return (document.body if is_committed else document.prior) or None

    async def _step_named(self, key: str) -> str | None:
        """Return the id of the step that the document names, "" if none; None if the document does not exist."""
        try:
            return decode_document(key, (await self.bucket.read(key)).content).step or ""
        except ObjectMissing:
            return None

    async def read_json(self, key: str, kind: type[P]) -> P | None:
        """Return a JSON document, or None. Raise `StoreUnavailable`, naming the key, if it is damaged."""
        try:
            raw = (await self.bucket.read(key)).content
        except ObjectMissing:
            return None
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.MsgspecError as error:
            raise StoreUnavailable(f"{key} is damaged: {error}") from None

    async def is_there(self, key: str) -> bool:
        """Return whether an object exists, by a read."""
        try:
            await self.bucket.read(key)
        except ObjectMissing:
            return False
        return True

    async def measured(self, key: str) -> tuple[int, int] | None:
        """Return size and checksum of a payload, read in parts; None if it does not exist."""
        size = checksum = 0
        try:
            async for part in self.bucket.stream(key, 0):
                size += len(part)
                checksum = crc32(part, checksum)
        except ObjectMissing:
            return None
        return size, checksum
