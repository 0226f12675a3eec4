"""Buckets by obstore: memory, S3, Azure and Google."""

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
    Read,
    Unanswered,
)

# Parts of an upload: what S3 takes at least is 5 MiB, and of 10,000 parts at most.
_PART = 8 << 20
_AT_ONCE = 4 << 20
# A request is tried again for this long, then given up; each try has the cloud's own timeout, 30 s if nothing says so.
_RETRY = timedelta(seconds=30)
# Of one process: more of them wait here, where it does not count as the cloud's time to answer.
_REQUESTS_AT_ONCE = 128
# An answer that breaks off in the middle is not asked for again by obstore: so often by us.
_READS = 3


@contextmanager
def _named() -> Iterator[None]:
    """The bucket's errors by what they mean here."""
    try:
        yield
    except (FileNotFoundError, NotFoundError) as error:
        raise ObjectMissing(str(error).partition("\n")[0]) from None
    except (AlreadyExistsError, PreconditionError, FileExistsError) as error:
        raise PreconditionFailed(str(error).partition("\n")[0]) from None
    except (BaseError, OSError, TimeoutError) as error:
        raise Unanswered(str(error).partition("\n")[0]) from None


class CloudBucket:
    """Over the network: every call is awaited."""

    deletes_exactly = False
    patience_ms = 20_000
    gather_ms = 30_000
    # `Last-Modified` counts seconds.
    time_step_ms = 1_000

    def __init__(self, url: str, **options: Any) -> None:
        """`options` are obstore's, for tests; otherwise each cloud's own variables and files say who asks, and how: so
        none of them are given here that would stand in the place of those, such as AWS_ALLOW_HTTP."""
        self.url = url
        self._room = asyncio.Semaphore(_REQUESTS_AT_ONCE)
        options.setdefault("retry_config", {"retry_timeout": _RETRY})
        try:
            self._store: Any = from_url(url, **options)
        except (BaseError, ValueError) as error:
            raise Unanswered(str(error).partition("\n")[0]) from None

    async def open(self) -> None:
        async with self._asking():
            async for _ in obstore.list(self._store, ".holdfast/", chunk_size=1):
                break

    async def close(self) -> None:
        pass

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        async with self._room:
            with _named():
                yield

    async def read(self, key: str) -> Read:
        for _ in range(_READS - 1):
            with suppress(Unanswered):
                return await self._read(key)
        return await self._read(key)

    async def _read(self, key: str) -> Read:
        async with self._asking():
            found = await obstore.get_async(self._store, key)
            content = bytes(await found.bytes_async())
            etag = _etag(found.meta)
        return Read(content, ObjectVersion(etag, etag))

    async def written_at(self, key: str) -> int:
        async with self._asking():
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
        async with self._asking():
            done = await obstore.put_async(self._store, key, content, mode=mode)
        etag = _etag(done)
        return ObjectVersion(etag, etag)

    async def copy(self, source: str, target: str) -> None:
        async with self._asking():
            await obstore.copy_async(self._store, source, target)

    async def delete(self, keys: Sequence[str]) -> None:
        async with self._asking():
            with suppress(FileNotFoundError, NotFoundError):
                await obstore.delete_async(self._store, list(keys))

    async def delete_exactly(self, key: str, etag: str) -> None:
        with suppress(ObjectMissing):
            if (await self.read(key)).stamp.etag == etag:
                await self.delete([key])

    async def pages(self, prefix: str, after: str | None = None) -> AsyncIterator[list[ListedObject]]:
        stream = obstore.list(self._store, prefix, offset=after, chunk_size=PAGE)
        while True:
            async with self._asking():
                try:
                    page = await anext(aiter(stream))
                except StopAsyncIteration:
                    return
            yield [_item(each) for each in page]

    async def upload(self, key: str) -> ObjectUpload:
        return _CloudUpload(obstore.open_writer_async(self._store, key, buffer_size=_PART), self._asking)

    async def stream(self, key: str, start: int) -> AsyncIterator[bytes]:
        async with self._asking():
            size = (await obstore.head_async(self._store, key))["size"]
        while start < size:
            end = min(start + _AT_ONCE, size)
            async with self._asking():
                part = bytes(await obstore.get_range_async(self._store, key, start=start, end=end))
            yield part
            start = end


class _CloudUpload:
    def __init__(self, writer: Any, asking: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self._writer = writer
        self._asking = asking

    async def write(self, part: bytes) -> None:
        async with self._asking():
            await self._writer.write(part)

    async def finish(self) -> None:
        async with self._asking():
            await self._writer.close()

    async def abandon(self) -> None:
        """What was uploaded in parts is dropped by the bucket's own rule for unfinished uploads."""


class MemoryBucket(CloudBucket):
    """In this process alone. Calls answer at once; nothing is awaited but a turn, so that others go on."""

    deletes_exactly = True
    patience_ms = 5_000
    gather_ms = 1_000

    def __init__(self) -> None:
        self.url = "memory"
        self._room = asyncio.Semaphore(_REQUESTS_AT_ONCE)
        self._store = ObstoreMemory()

    async def open(self) -> None:
        pass

    async def read(self, key: str) -> Read:
        with _named():
            found = obstore.get(self._store, key)
            content = bytes(found.bytes())
            etag = _etag(found.meta)
        return Read(content, ObjectVersion(etag, etag))

    async def _put(self, key: str, content: bytes, mode: Any) -> ObjectVersion:
        with _named():
            etag = _etag(obstore.put(self._store, key, content, mode=mode))
        return ObjectVersion(etag, etag)

    async def copy(self, source: str, target: str) -> None:
        with _named():
            obstore.copy(self._store, source, target)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            with suppress(ObjectMissing), _named():
                obstore.delete(self._store, key)

    async def pages(self, prefix: str, after: str | None = None) -> AsyncIterator[list[ListedObject]]:
        with _named():
            stream = iter(obstore.list(self._store, prefix, offset=after, chunk_size=PAGE))
        for page in stream:
            yield [_item(each) for each in page]
            await asyncio.sleep(0)


def _etag(meta: Any) -> str:
    etag = meta["e_tag"]
    if etag is None:
        raise Unanswered("the bucket gives no ETags")
    return str(etag)


def _item(meta: Any) -> ListedObject:
    return ListedObject(meta["path"], _etag(meta), meta["size"], _written_at(meta))


def _written_at(meta: Any) -> int:
    return int(meta["last_modified"].timestamp() * 1_000)
