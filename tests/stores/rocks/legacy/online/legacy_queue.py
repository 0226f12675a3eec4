"""A database of the legacy layout with known messages, opened as a store on the manual clock."""

import asyncio
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.client.client import AsyncHoldfast
from holdfast.dice import SeededDice
from holdfast.model import ids
from holdfast.model.answers import Info
from holdfast.server.compose import Core
from holdfast.server.embedded import Embedded, open_on_loop
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.stores.rocks.legacy.online.moving_store import MovingStore
from holdfast.testing import ManualClock
from tests.machinery.legacy.databases import LegacyWriter

NOW_S = 1_900_000_000
NOW_MS = NOW_S * 1_000
# More than any disk has: the background loop moves nothing but claimed messages, and enqueues are refused.
NO_ROOM = 1 << 60
_WEEK_MS = 7 * 86_400_000


def own_ids(count: int) -> list[bytes]:
    """Return ids of this version's form, from an hour ago."""
    return [ids.to_bytes(id) for id in ids.IdMaker(7).take(count, NOW_MS - 3_600_000)]


def make_queue(path: Path, *, foreign: int = 0, own: int = 0, delayed: int = 0, held: int = 0) -> None:
    """Write a database. Payloads are `foreign 0`, `own 0`, …, and each message is due a second after the one before.
    Delayed messages are due in an hour, and held ones are under one lease for ten minutes."""
    writer = LegacyWriter(path)
    for number in range(foreign):
        writer.add(b"job-%05d" % number, b"foreign %d" % number, NOW_S - 5_000 + number)
    for number, id in enumerate(own_ids(own + held)):
        if number < own:
            writer.add(id, b"own %d" % number, NOW_S - 4_000 + number)
    for number in range(delayed):
        writer.add(b"late-%05d" % number, b"delayed %d" % number, NOW_S + 3_600)
    if held:
        claimed = {id: b"held %d" % number for number, id in enumerate(own_ids(own + held)[own:])}
        writer.claim(b"lease", claimed, NOW_S + 600)
    writer.close()


def open_moving(path: Path, clock: ManualClock, *, durability: str = "fsync", **options: Any) -> AsyncHoldfast:
    """Open the directory as `holdfast.open` does."""
    options.setdefault("low_disk_bytes", 0)
    store = MovingStore(
        path, SeededDice(1), durability=Durability(durability), journal_retention_ms=_WEEK_MS, **options
    )
    return open_on_loop("", {}, clock=clock, store=store)


def core_of(hf: AsyncHoldfast) -> Core:
    return cast(Embedded, hf._transport).core


async def wait_until_moved(hf: AsyncHoldfast) -> None:
    while (await hf.queue().stats()).legacy_left is not msgspec.UNSET:
        await asyncio.sleep(0)


async def wait_until(condition: Any) -> None:
    while not await condition():
        await asyncio.sleep(0)


async def list_all(hf: AsyncHoldfast, **options: Any) -> list[Info]:
    found: list[Info] = []
    cursor = None
    while True:
        page = await hf.queue().list(limit=7, payload=True, cursor=cursor, **options)
        found += page
        if (cursor := page.cursor) is None:
            return found
