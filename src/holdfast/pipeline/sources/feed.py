"""The journal of any store, as the sources read it."""

import io
from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa

from holdfast.client.http.journal import JournalCalls
from holdfast.pipeline.sources.options import StoreAddress

# The maximum number of events in a page.
PAGE = 10_000


class Feed(Protocol):
    """A journal. Positions are opaque. Between two positions there are always the same events."""

    def measure(self, after: str | None, limit: int, until: str | None) -> tuple[int, str]:
        """Count the events after a position, up to `limit` or the size of one page, and return the position after them.

        At the end of the journal, the returned position is `after`.
        """

    def read(self, after: str | None, until: str) -> Iterator[pa.RecordBatch]:
        """Yield all events of a range, with the columns of `wire.arrow`."""

    def close(self) -> None: ...


# A function that opens the journal of a store, for one tenant or for all. It is passed in, because only `server` may
# import the stores.
OpenFeed = Callable[[StoreAddress, str | None], Feed]


class HttpFeed:
    """The journal of a server, read over HTTP."""

    def __init__(self, store: StoreAddress, tenant: str | None) -> None:
        self._calls = JournalCalls(store.address, store.client_settings(), tenant)

    def measure(self, after: str | None, limit: int, until: str | None) -> tuple[int, str]:
        return self._calls.count(after, min(limit, PAGE), until)

    def read(self, after: str | None, until: str) -> Iterator[pa.RecordBatch]:
        position = after
        while position != until:
            body, end = self._calls.page(position, PAGE, until)
            yield from pa.ipc.open_stream(io.BytesIO(body))
            if end == position:
                return
            position = end

    def close(self) -> None:
        self._calls.close()
