"""When the servers over a database know of one another."""

import asyncio
from typing import cast

from holdfast.client.client import AsyncHoldfast
from holdfast.server.embedded import Embedded
from holdfast.stores.buffered.store import BufferedStore
from holdfast.stores.postgres import PostgresStore

_PATIENCE_S = 30


async def until_heard(*servers: AsyncHoldfast) -> None:
    """Each listens, and knows that it is not alone."""
    async with asyncio.timeout(_PATIENCE_S):
        for hf in servers:
            store = cast(Embedded, hf._transport).core.store
            inner = cast(PostgresStore, store._inner if isinstance(store, BufferedStore) else store)
            while not inner._notifier.has_peers():
                await asyncio.sleep(0.01)
