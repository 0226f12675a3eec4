"""The journal wherever it is kept, as the sources read it."""

import io
from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa

from holdfast.client.http.journal import JournalCalls
from holdfast.pipeline.sources.options import StoreAddress

# The longest page there is.
PAGE = 10_000


class Feed(Protocol):
    """Positions are opaque. Between two of them there are always the same events."""

    def measure(self, after: str | None, limit: int, until: str | None) -> tuple[int, str]:
        """How many there are behind the position, and where they end: up to `limit`, or as many as one step looks at.
        Where the position does not move is the end."""

    def read(self, after: str | None, until: str) -> Iterator[pa.RecordBatch]:
        """All events of a range, with the columns of `wire.arrow`."""

    def close(self) -> None: ...


# Opens the journal of a place, of one tenant or of all. Handed in: only `server` knows the stores.
OpenFeed = Callable[[StoreAddress, str | None], Feed]


class HttpFeed:
    def __init__(self, place: StoreAddress, tenant: str | None) -> None:
        self._calls = JournalCalls(place.address, place.client_settings(), tenant)

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
