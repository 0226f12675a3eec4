"""Documents as they stand, read without the steps that other readers take on the way."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar
from zlib import crc32

import msgspec

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.objects.buckets.bucket import Bucket, ObjectMissing
from holdfast.stores.objects.buckets.retries import side_by_side
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.document_format import StepBody, decode_sheet
from holdfast.stores.objects.documents.json_documents import P

T = TypeVar("T")

_AT_ONCE = 16

_step_of = msgspec.msgpack.Decoder(StepBody).decode


class VerifyReader:
    def __init__(self, bucket: Bucket, now_ms: int) -> None:
        self.bucket = bucket
        self.now_ms = now_ms

    async def each(self, what: Iterable[T], do: Callable[[T], Awaitable[None]]) -> None:
        await side_by_side(what, do, _AT_ONCE)

    async def sheet(self, key: str) -> bytes | None:
        """What holds under this key; None: nothing does. `StoreUnavailable`, naming it, if it is damaged."""
        while True:
            try:
                raw = (await self.bucket.read(key)).content
            except ObjectMissing:
                return None
            sheet = decode_sheet(key, raw)
            if sheet.step is None:
                return sheet.body or None
            try:
                record = (await self.bucket.read(layout.step(sheet.step))).content
            except ObjectMissing:
                # Finished between the two reads, unless it is named still: then it was never decided.
                again = await self._step_named(key)
                if again is not None and again != sheet.step:
                    continue
                return sheet.prior or None
            holds = _step_of(decode_sheet(layout.step(sheet.step), record).body).holds
            return (sheet.body if holds else sheet.prior) or None

    async def _step_named(self, key: str) -> str | None:
        """Empty: none. None: the sheet is gone."""
        try:
            return decode_sheet(key, (await self.bucket.read(key)).content).step or ""
        except ObjectMissing:
            return None

    async def paper(self, key: str, kind: type[P]) -> P | None:
        try:
            raw = (await self.bucket.read(key)).content
        except ObjectMissing:
            return None
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.MsgspecError as error:
            raise StoreUnavailable(f"{key} is damaged: {error}") from None

    async def is_there(self, key: str) -> bool:
        try:
            await self.bucket.read(key)
        except ObjectMissing:
            return False
        return True

    async def measured(self, key: str) -> tuple[int, int] | None:
        """Size and checksum of a payload, some megabytes of it in memory at a time; None: there is none."""
        size = checksum = 0
        try:
            async for part in self.bucket.stream(key, 0):
                size += len(part)
                checksum = crc32(part, checksum)
        except ObjectMissing:
            return None
        return size, checksum
