"""Waits until the servers of a database know each other."""

from typing import cast

from holdfast.client.client import AsyncHoldfast
from holdfast.server.embedded import Embedded
from holdfast.stores.buffered.store import BufferedStore
from holdfast.stores.postgres import PostgresStore
from tests.worker.passing import until


async def until_peers_known(*servers: AsyncHoldfast) -> None:
    """Wait until each server listens, and knows of another one."""
    for hf in servers:
        store = cast(Embedded, hf._transport).core.store
        inner = cast(PostgresStore, store._inner if isinstance(store, BufferedStore) else store)
        await until(inner._notifier.has_peers)
