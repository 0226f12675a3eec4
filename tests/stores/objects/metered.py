"""A bucket that counts its calls, as a cloud's bill does."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from holdfast.stores.objects.buckets.bucket import Bucket, ListedObject, ObjectUpload, ObjectVersion, StoredObject


class Calls(NamedTuple):
    writes: int = 0
    reads: int = 0
    lists: int = 0
    deletes: int = 0


class MeteredBucket:
    """A page of a listing is a call. So is a deletion of up to a thousand keys, and a copy is a write."""

    def __init__(self, inner: Bucket) -> None:
        self._inner = inner
        self.url = inner.url
        self.deletes_exactly = inner.deletes_exactly
        self.step_timeout_ms = inner.step_timeout_ms
        self.outbox_scan_ms = inner.outbox_scan_ms
        self.time_resolution_ms = inner.time_resolution_ms
        self._counted: Counter[str] = Counter()

    def take(self) -> Calls:
        """Since the last time."""
        counted, self._counted = self._counted, Counter()
        return Calls(**counted)

    async def open(self) -> None:
        await self._inner.open()

    async def close(self) -> None:
        await self._inner.close()

    async def read(self, key: str) -> StoredObject:
        self._counted["reads"] += 1
        return await self._inner.read(key)

    async def written_at(self, key: str) -> int:
        self._counted["reads"] += 1
        return await self._inner.written_at(key)

    async def create(self, key: str, content: bytes) -> ObjectVersion:
        self._counted["writes"] += 1
        return await self._inner.create(key, content)

    async def replace(self, key: str, content: bytes, etag: str) -> ObjectVersion:
        self._counted["writes"] += 1
        return await self._inner.replace(key, content, etag)

    async def put(self, key: str, content: bytes) -> ObjectVersion:
        self._counted["writes"] += 1
        return await self._inner.put(key, content)

    async def copy(self, source: str, target: str) -> None:
        self._counted["writes"] += 1
        await self._inner.copy(source, target)

    async def delete(self, keys: Sequence[str]) -> None:
        if keys:
            self._counted["deletes"] += 1
        await self._inner.delete(keys)

    async def delete_exactly(self, key: str, etag: str) -> None:
        self._counted["deletes"] += 1
        await self._inner.delete_exactly(key, etag)

    async def pages(self, prefix: str, after: str | None = None) -> AsyncIterator[list[ListedObject]]:
        self._counted["lists"] += 1
        is_first = True
        async for page in self._inner.pages(prefix, after):
            self._counted["lists"] += not is_first
            is_first = False
            yield page

    async def upload(self, key: str) -> ObjectUpload:
        self._counted["writes"] += 1
        return await self._inner.upload(key)

    def stream(self, key: str, start: int) -> AsyncIterator[bytes]:
        self._counted["reads"] += 1
        return self._inner.stream(key, start)
