"""Queues that take large payloads, and what of those is left in the store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.client.client import AsyncHoldfast
from holdfast.server.compose import Core
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.store import RocksStore
from holdfast.testing import ManualClock
from tests.doors.framed.serving import serve_framed
from tests.doors.serving import Server, serve

MAX_PAYLOAD = 16 << 20
SETTINGS = {"durability": "os", "max_payload": MAX_PAYLOAD}
PATIENCE_S = 30


class Place(NamedTuple):
    hf: AsyncHoldfast
    # What is behind it.
    core: Core


@asynccontextmanager
async def served(clock: ManualClock, directory: Path, door: str = "http") -> AsyncIterator[Server]:
    serving: Any = serve if door == "http" else serve_framed
    async with serving(clock, store=str(directory / "data"), **SETTINGS) as serving:
        yield serving


async def staged(core: Core) -> list[bytes]:
    """Keys of payloads that no message has, once what was abandoned is swept."""
    while await core.sweeper.sweep_once():
        pass
    assert isinstance(core.store, RocksStore)
    engine = core.store.shards[0].engine
    engine.write()
    found = engine.database.scan(keys.INDEXES, keys.STAGES, keys.after(keys.STAGES))
    return list(found)
