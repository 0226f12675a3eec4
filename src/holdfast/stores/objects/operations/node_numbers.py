"""Node numbers of message ids: taken by making an object, kept by writing it anew (SPEC 1.4)."""

import asyncio
import logging
from contextlib import suppress

import msgspec

from holdfast.background import Backoff, run_forever
from holdfast.clock import Clock
from holdfast.dice import Dice
from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import NODES, IdMaker
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.clock_skew import Skew
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.cas_documents import CasDocuments, ReadCasDocument
from holdfast.stores.objects.documents.document_format import NodeBody, encode

_log = logging.getLogger("holdfast")

_LEASE_MS = 60_000
_RENEW_S = 15.0
_SKEWED_S = 1.0
# A number whose lease ran out is given to another only after this long: whoever had it may be cut off, not dead, and
# clocks differ.
_REST_MS = 600_000
# Numbers looked at until one is free.
_TRIES = 64

_node_of = msgspec.msgpack.Decoder(NodeBody).decode


class ObjectNodeNumbers:
    def __init__(self, sheets: CasDocuments, clock: Clock, dice: Dice, holder: str, skew: Skew) -> None:
        self._sheets = sheets
        self._clock = clock
        self._dice = dice
        self._holder = holder
        self._skew = skew
        self._held: ReadCasDocument | None = None
        self._ids: IdMaker | None = None

    def take_ids(self, number: int, now_ms: int) -> list[int]:
        if self._ids is None:
            raise StoreUnavailable("this process has no node number: the bucket has not answered yet")
        return self._ids.take(number, now_ms)

    async def lease(self) -> None:
        """The first free one from a random number on."""
        first = int(self._dice.roll() * NODES)
        for offset in range(_TRIES):
            if await self._take((first + offset * 17) % NODES):
                return
        raise StoreUnavailable(f"no node number is free among {_TRIES} of {NODES}: stop processes that are not needed")

    async def _take(self, number: int) -> bool:
        key, now_ms = layout.node(number), self._clock.now_ms()
        held = await self._sheets.read(key)
        was = None if held is None or held.body is None else _node_of(held.body)
        if was is not None and was.holder is not None and now_ms < was.ends_at + _REST_MS:
            return False
        highest = 0 if was is None else was.highest_id
        if self._ids is not None:
            highest = max(highest, self._ids.highest)
        try:
            body = NodeBody(self._holder, now_ms + _LEASE_MS, highest)
            self._held = await self._sheets.write(key, encode(body), held)
        except PreconditionFailed:
            return False
        after_ms = self._clock.now_ms()
        self._ids = IdMaker(number, highest)
        await self._skew.measure(key, now_ms, after_ms)
        return True

    async def keep(self) -> None:
        """Renew the lease in time, until cancelled."""
        await run_forever(self.renew, Backoff("node_number"), self._clock, self._wait)

    async def _wait(self) -> None:
        # A clock that was found wrong is looked at often: claims wait for it to be right.
        await asyncio.sleep(_SKEWED_S if self._skew.is_beyond else _RENEW_S)

    async def renew(self) -> None:
        """Ours still, or another number."""
        if self._held is None or self._ids is None:
            await self.lease()
            return
        before_ms = self._clock.now_ms()
        body = NodeBody(self._holder, before_ms + _LEASE_MS, self._ids.highest)
        try:
            self._held = await self._sheets.write(self._held.key, encode(body), self._held)
            await self._skew.measure(self._held.key, before_ms, self._clock.now_ms())
        except PreconditionFailed:
            _log.warning("node number %d was given to another process: taking a new one", self._ids.node)
            await self.lease()

    async def release(self) -> None:
        if self._held is not None and self._ids is not None:
            body = NodeBody(None, self._clock.now_ms(), self._ids.highest)
            with suppress(PreconditionFailed):
                await self._sheets.write(self._held.key, encode(body), self._held)
