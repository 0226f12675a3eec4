"""A bucket that fails as real ones do, as its dice say: a seed, or a number of a write, repeats a run."""

import random
from collections.abc import AsyncIterator, Sequence

from holdfast.stores.objects.buckets.bucket import (
    Bucket,
    ListedObject,
    ObjectUpload,
    ObjectVersion,
    PreconditionFailed,
    StoredObject,
    Unanswered,
)

# What a conditional write may answer beside the truth.
REFUSED = "refused though nobody was there"
UNANSWERED_BEFORE = "not carried out, and not answered"
UNANSWERED_AFTER = "carried out, and not answered"
CHANGED_AFTER = "carried out, and refused when the client tried it again by itself"
FAULTS = (REFUSED, UNANSWERED_BEFORE, UNANSWERED_AFTER, CHANGED_AFTER)


class FaultyBucket:
    """`dies_at`: the number of the write before which the process is gone; all calls fail from then on."""

    def __init__(
        self,
        inner: Bucket,
        *,
        dies_at: int | None = None,
        dice: random.Random | None = None,
        rate: float = 0.0,
        lists_late: bool = True,
    ) -> None:
        self._inner = inner
        self.url = inner.url
        self.deletes_exactly = inner.deletes_exactly
        self.step_timeout_ms = inner.step_timeout_ms
        self.outbox_scan_ms = inner.outbox_scan_ms
        self.time_resolution_ms = inner.time_resolution_ms
        self._dies_at = dies_at
        self._dice = dice
        self._rate = rate
        self._lists_late = lists_late
        self.writes = 0
        self.struck = 0
        self.is_dead = False
        # Keys made lately: a late listing does not show them.
        self._recent: list[str] = []

    async def open(self) -> None:
        await self._inner.open()

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.is_dead:
            raise Unanswered("dead")

    def _begin_write(self) -> str | None:
        self._check()
        self.writes += 1
        if self._dies_at is not None and self.writes >= self._dies_at:
            self.is_dead = True
            raise Unanswered("dead")
        if self._dice is not None and self._dice.random() < self._rate:
            self.struck += 1
            return self._dice.choice(FAULTS)
        return None

    async def read(self, key: str) -> StoredObject:
        self._check()
        return await self._inner.read(key)

    async def written_at(self, key: str) -> int:
        self._check()
        return await self._inner.written_at(key)

    async def create(self, key: str, content: bytes) -> ObjectVersion:
        fault = self._begin_write()
        self._refuse_before(fault)
        version = await self._inner.create(key, content)
        self._recent = [*self._recent, key][-5:]
        return self._answer(fault, version)

    async def replace(self, key: str, content: bytes, etag: str) -> ObjectVersion:
        fault = self._begin_write()
        self._refuse_before(fault)
        return self._answer(fault, await self._inner.replace(key, content, etag))

    async def put(self, key: str, content: bytes) -> ObjectVersion:
        self._begin_write()
        return await self._inner.put(key, content)

    def _refuse_before(self, fault: str | None) -> None:
        if fault == REFUSED:
            raise PreconditionFailed(fault)
        if fault == UNANSWERED_BEFORE:
            raise Unanswered(fault)

    def _answer(self, fault: str | None, version: ObjectVersion) -> ObjectVersion:
        if fault == UNANSWERED_AFTER:
            raise Unanswered(fault)
        if fault == CHANGED_AFTER:
            raise PreconditionFailed(fault)
        return version

    async def copy(self, source: str, target: str) -> None:
        self._begin_write()
        await self._inner.copy(source, target)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._begin_write()
            await self._inner.delete([key])

    async def delete_exactly(self, key: str, etag: str) -> None:
        self._begin_write()
        await self._inner.delete_exactly(key, etag)

    async def pages(self, prefix: str, after: str | None = None) -> AsyncIterator[list[ListedObject]]:
        self._check()
        is_late = self._lists_late and self._dice is not None and self._dice.random() < self._rate
        hidden = set(self._recent) if is_late else set()
        async for page in self._inner.pages(prefix, after):
            self._check()
            yield [item for item in page if item.key not in hidden]

    async def upload(self, key: str) -> ObjectUpload:
        self._begin_write()
        return await self._inner.upload(key)

    def stream(self, key: str, start: int) -> AsyncIterator[bytes]:
        self._check()
        return self._inner.stream(key, start)
