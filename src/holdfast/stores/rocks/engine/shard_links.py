"""Commits that change two shards: both shards keep their half or neither does, whatever a crash leaves of their logs.

    write    each shard writes its half as a frame of kind LINKED, one right after the other. Both halves have the
             number of the link and name the other shard (`LINK_KEY`).
    sync     neither shard treats its half, or anything after it, as synced before the other half is on disk too. So
             responses, and the data that a checkpoint writes to RocksDB, never depend on a half that may be lost.
    opening  a half whose other half is missing is discarded, with everything after it: none of that had a response.

There is one link at a time, so only the last link of a store can be incomplete.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from holdfast.model.errors import StoreUnavailable
from holdfast.runtime import Runtime, Ticket
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.log.replay import ReplayResult

# The key of the last link that a shard took part in.
LINK_KEY = keys.META + b"link"
_MARK = struct.Struct(">QI")
# How to change this format: store the new form under another key, read this one where that is missing, and raise the
# format of the store (`recovery/marker.py`): an older version would otherwise keep half of a link.


class LinkMark(NamedTuple):
    """The number of a link, and the number of the shard with its other half."""

    number: int
    partner: int


NO_LINK = LinkMark(0, 0)


class Linked(Protocol):
    """The database of a shard after its log was read and before anything is written."""

    replayed: ReplayResult

    def get(self, family: int, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none."""

    def replay_before(self, frame: int) -> None:
        """Read the log again, up to the frame before this one."""


def read_last_link(database: Linked) -> LinkMark:
    """Return the last link that a shard took part in; `NO_LINK` if there was none."""
    raw = database.get(keys.DIRECTORY, LINK_KEY)
    return NO_LINK if raw is None else LinkMark(*_MARK.unpack(raw))


def resolve_links(shards: Mapping[int, Linked], store: str) -> int:
    """Discard the half of a link whose other half is missing. Return the number of the last complete link.

    `shards` may be a part of the store. A link to another part was complete when the store was opened as a whole.

    Raise `StoreUnavailable` if the missing half was once on disk: its shard is then damaged, or restored from an older
    copy.
    """
    links = {number: read_last_link(shard) for number, shard in shards.items()}
    for number, shard in shards.items():
        frame, link = shard.replayed.linked, links[number]
        if link == NO_LINK or link.partner not in links or links[link.partner].number >= link.number:
            continue
        if frame is None or shard.replayed.synced_after_link >= frame:
            raise StoreUnavailable(
                f"{store} is damaged: shard {link.partner} lacks a commit that shard {number} has the other half of; "
                "restore a backup of all shards",
                path=store,
            )
        shard.replay_before(frame)
    return max((read_last_link(shard).number for shard in shards.values()), default=0)


class ShardLink:
    """One link whose halves are on their way to disk."""

    def __init__(self, runtime: Runtime, engines: tuple[Engine, Engine]) -> None:
        self._runtime = runtime
        self._engines = engines
        self._on_disk: set[int] = set()
        self._waiting: list[Ticket[None]] = []

    async def wait_for_other_half(self, engine: Engine) -> None:
        """Return once the other half is on disk too, or once an engine has stopped. The half of `engine` is on disk."""
        self._on_disk.add(id(engine))
        if len(self._on_disk) == len(self._engines):
            self.release()
            return
        for other in self._engines:
            if other is not engine:
                other.sync_soon()
        ticket = self._runtime.ticket()
        self._waiting.append(ticket)
        await ticket

    def release(self) -> None:
        """Wake the engine that waits in `wait_for_other_half`."""
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            if not ticket.done():
                ticket.set_result(None)


class ShardLinks:
    """The links of an open store, one at a time."""

    def __init__(self, runtime: Runtime, last: int) -> None:
        """`last`: the number of the last complete link."""
        self._runtime = runtime
        self._last = last
        self._is_open = False
        self._waiting: list[Ticket[None]] = []

    async def begin(self) -> None:
        """Wait until no link is in progress. The caller must call `end`."""
        while self._is_open:
            ticket = self._runtime.ticket()
            self._waiting.append(ticket)
            await ticket
        self._is_open = True

    def end(self) -> None:
        """End the link in progress."""
        self._is_open = False
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            if not ticket.done():
                ticket.set_result(None)

    async def commit(self, one: Engine, other: Engine, shards: tuple[int, int]) -> None:
        """End an operation that has changed two shards, and return once both halves are on disk.

        This holds for both durabilities: with "os", other operations get their response earlier, but the next link must
        not begin before.
        """
        self._last += 1
        link = ShardLink(self._runtime, (one, other))
        for engine, partner in ((one, shards[1]), (other, shards[0])):
            engine.put(LINK_KEY, _MARK.pack(self._last, partner), keys.DIRECTORY)
            engine.write_linked(link)
        tickets = [(engine, engine.commit()) for engine in (one, other)]
        for engine, ticket in tickets:
            if ticket is not None:
                await engine.wait(ticket)
        for engine in (one, other):
            await engine.synced()
