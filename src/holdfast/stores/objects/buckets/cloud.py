"""Buckets through obstore: S3, Azure, Google, and one in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.store import MemoryStore as ObstoreMemory
from obstore.store import from_url

from holdfast.stores.objects.buckets.bucket import (
    PAGE,
    ListedObject,
    ObjectMissing,
    ObjectUpload,
    ObjectVersion,
    PreconditionFailed,
    StoredObject,
    Unanswered,
)

# Part size of an upload in bytes. S3 takes parts of at least 5 MiB, and at most 10,000 parts.
_PART_BYTES = 8 << 20
_STREAM_BYTES = 4 << 20
# obstore retries a request for this long. Each try has the cloud's own timeout, 30 s by default.
_RETRY = timedelta(seconds=30)
# Concurrent requests of one process. Further requests wait here, where the wait does not count towards the cloud's
# timeout.
_MAX_REQUESTS = 128
# Tries of a read: obstore does not retry a response that breaks off in the middle.
_READ_TRIES = 3


@contextmanager
def _bucket_errors() -> Iterator[None]:
    """Convert obstore's errors to the errors of the bucket interface."""
    try:
        yield
    except (FileNotFoundError, NotFoundError) as error:
        raise ObjectMissing(str(error).partition("\n")[0]) from None
    except (AlreadyExistsError, PreconditionError, FileExistsError) as error:
        raise PreconditionFailed(str(error).partition("\n")[0]) from None
    except (BaseError, OSError, TimeoutError) as error:
        raise Unanswered(str(error).partition("\n")[0]) from None


class CloudBucket:
    """A bucket reached over the network."""

    deletes_exactly = False
    step_timeout_ms = 20_000
    outbox_scan_ms = 30_000
    # `Last-Modified` has a resolution of one second.
    time_resolution_ms = 1_000

    def __init__(self, url: str, **options: Any) -> None:
        """Use the bucket of a URL. No request is sent yet.

        `options` are passed to obstore, for tests. Credentials and endpoints come from the cloud's own variables and
        files; no option may be set here that would override one of those, such as AWS_ALLOW_HTTP.
        """
        self.url = url
        self._request_slots = asyncio.Semaphore(_MAX_REQUESTS)
        options.setdefault("retry_config", {"retry_timeout": _RETRY})
        try:
            self._store: Any = from_url(url, **options)
        except (BaseError, ValueError) as error:
            raise Unanswered(str(error).partition("\n")[0]) from None

    async def open(self) -> None:
        async with self._request():
            async for _ in obstore.list(self._store, ".holdfast/", chunk_size=1):
                break

    async def close(self) -> None:
        pass

    @asynccontextmanager
    async def _request(self) -> AsyncIterator[None]:
        async with self._request_slots:
            with _bucket_errors():
                yield

    async def read(self, key: str) -> StoredObject:
        for _ in range(_READ_TRIES - 1):
            with suppress(Unanswered):
                return await self._read(key)
        return await self._read(key)

    async def _read(self, key: str) -> StoredObject:
        async with self._request():
            found = await obstore.get_async(self._store, key)
            content = bytes(await found.bytes_async())
            etag = _etag(found.meta)
        return StoredObject(content, ObjectVersion(etag, etag))

    async def written_at(self, key: str) -> int:
        async with self._request():
            return _written_at(await obstore.head_async(self._store, key))

    async def create(self, key: str, content: bytes) -> ObjectVersion:
        return await self._put(key, content, "create")

    async def replace(self, key: str, content: bytes, etag: str) -> ObjectVersion:
        try:
            return await self._put(key, content, {"e_tag": etag})
        except ObjectMissing as error:
            raise PreconditionFailed(str(error)) from None

    async def put(self, key: str, content: bytes) -> ObjectVersion:
        return await self._put(key, content, "overwrite")

    async def _put(self, key: str, content: bytes, mode: Any) -> ObjectVersion:
        async with self._request():
            done = await obstore.put_async(self._store, key, content, mode=mode)
        etag = _etag(done)
        return ObjectVersion(etag, etag)

    async def copy(self, source: str, target: str) -> None:
        async with self._request():
            await obstore.copy_async(self._store, source, target)

    async def delete(self, keys: Sequence[str]) -> None:
        async with self._request():
            with suppress(FileNotFoundError, NotFoundError):
                await obstore.delete_async(self._store, list(keys))

    async def delete_exactly(self, key: str, etag: str) -> None:
        with suppress(ObjectMissing):
            if (await self.read(key)).version.etag == etag:
                await self.delete([key])

    async def pages(self, prefix: str, after: str | None = None) -> AsyncIterator[list[ListedObject]]:
        stream = obstore.list(self._store, prefix, offset=after, chunk_size=PAGE)
        while True:
            async with self._request():
                try:
                    page = await anext(aiter(stream))
                except StopAsyncIteration:
                    return
            yield [_item(each) for each in page]

    async def upload(self, key: str) -> ObjectUpload:
        return _CloudUpload(obstore.open_writer_async(self._store, key, buffer_size=_PART_BYTES), self._request)

    async def stream(self, key: str, start: int) -> AsyncIterator[bytes]:
        async with self._request():
            size = (await obstore.head_async(self._store, key))["size"]
        while start < size:
            end = min(start + _STREAM_BYTES, size)
            async with self._request():
                part = bytes(await obstore.get_range_async(self._store, key, start=start, end=end))
            yield part
            start = end


class _CloudUpload:
    def __init__(self, writer: Any, request: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self._writer = writer
        self._request = request

    async def write(self, part: bytes) -> None:
        async with self._request():
            await self._writer.write(part)

    async def finish(self) -> None:
        async with self._request():
            await self._writer.close()

    async def abandon(self) -> None:
        """Leave the uploaded parts to the bucket's own rule for unfinished uploads."""


class MemoryBucket(CloudBucket):
    """A bucket in this process's memory. Its calls return without waiting; listings yield once per page so that other
    tasks can run."""

    deletes_exactly = True
    step_timeout_ms = 5_000
    outbox_scan_ms = 1_000

    def __init__(self) -> None:
        self.url = "memory"
        self._request_slots = asyncio.Semaphore(_MAX_REQUESTS)
        self._store = ObstoreMemory()

    async def open(self) -> None:
        pass

    async def read(self, key: str) -> StoredObject:
        with _bucket_errors():
            found = obstore.get(self._store, key)
            content = bytes(found.bytes())
            etag = _etag(found.meta)
        return StoredObject(content, ObjectVersion(etag, etag))

    async def _put(self, key: str, content: bytes, mode: Any) -> ObjectVersion:
        with _bucket_errors():
            etag = _etag(obstore.put(self._store, key, content, mode=mode))
        return ObjectVersion(etag, etag)

    async def copy(self, source: str, target: str) -> None:
        with _bucket_errors():
            obstore.copy(self._store, source, target)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            with suppress(ObjectMissing), _bucket_errors():
                obstore.delete(self._store, key)

    async def pages(self, prefix: str, after: str | None = None) -> AsyncIterator[list[ListedObject]]:
        with _bucket_errors():
            stream = iter(obstore.list(self._store, prefix, offset=after, chunk_size=PAGE))
        for page in stream:
            yield [_item(each) for each in page]
            await asyncio.sleep(0)


def _etag(meta: Any) -> str:
    etag = meta["e_tag"]
    if etag is None:
        raise Unanswered("the bucket returns no ETags")
    return str(etag)


def _item(meta: Any) -> ListedObject:
    return ListedObject(meta["path"], _etag(meta), meta["size"], _written_at(meta))


def _written_at(meta: Any) -> int:
    return int(meta["last_modified"].timestamp() * 1_000)
