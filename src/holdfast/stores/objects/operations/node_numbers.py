"""Lease node numbers, which make message ids unique among processes (SPEC 1.4).

A number is taken by creating or replacing its document, and kept by rewriting it.
"""

import logging
from contextlib import suppress

from holdfast.background import Backoff, run_forever, sleep_for
from holdfast.clock import Clock
from holdfast.dice import Dice
from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import NODES, IdMaker
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.clock_skew import ClockSkew
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import NodeBody
from holdfast.stores.objects.documents.cas_documents import CasDocuments, ReadCasDocument
from holdfast.stores.objects.documents.protobuf_mapping import BodyDecoder, encode

_log = logging.getLogger("holdfast")

_LEASE_MS = 60_000
_RENEW_MS = 15_000
_SKEWED_MS = 1_000
# Time after the end of a lease before another process takes the number: its holder may be cut off rather than dead, and
# clocks differ.
_REST_MS = 600_000
# Numbers tried before giving up.
_TRIES = 64

_decode_node = BodyDecoder(NodeBody)


class ObjectNodeNumbers:
    """The node number of this process. Its renewals also measure the clock."""

    def __init__(self, documents: CasDocuments, clock: Clock, dice: Dice, holder: str, skew: ClockSkew) -> None:
        self._documents = documents
        self._clock = clock
        self._dice = dice
        self._holder = holder
        self._skew = skew
        self._held: ReadCasDocument | None = None
        self._ids: IdMaker | None = None

    def take_ids(self, number: int, now_ms: int) -> list[int]:
        """Return new ids. Raise `StoreUnavailable` without a node number."""
        if self._ids is None:
            raise StoreUnavailable("this process has no node number yet; try again once the bucket responds")
        return self._ids.take(number, now_ms)

    async def lease(self) -> None:
        """Lease the first free number, beginning with a random one. Raise `StoreUnavailable` if none is found."""
        first = int(self._dice.roll() * NODES)
        for offset in range(_TRIES):
            if await self._take((first + offset * 17) % NODES):
                return
        raise StoreUnavailable(f"none of {_TRIES} node numbers tried (of {NODES}) is free; stop unneeded processes")

    async def _take(self, number: int) -> bool:
        key, now_ms = layout.node(number), self._clock.now_ms()
        current = await self._documents.read(key)
        was = None if current is None or current.body is None else _decode_node(current.body)
        if was is not None and was.holder is not None and now_ms < was.ends_at + _REST_MS:
            return False
        highest = 0 if was is None else was.highest_id
        if self._ids is not None:
            highest = max(highest, self._ids.highest)
        try:
            body = NodeBody(self._holder, now_ms + _LEASE_MS, highest)
            self._held = await self._documents.write(key, encode(body), current)
        except PreconditionFailed:
            return False
        after_ms = self._clock.now_ms()
        self._ids = IdMaker(number, highest)
        await self._skew.measure(key, now_ms, after_ms)
        return True

    async def run(self) -> None:
        """Renew the lease until cancelled."""
        await run_forever(self.renew_once, Backoff("node_number"), self._clock, self._wait)

    async def _wait(self) -> None:
        # A wrong clock is measured often, because claims wait until it is right.
        await sleep_for(self._clock, _SKEWED_MS if self._skew.is_beyond else _RENEW_MS)

    async def renew_once(self) -> None:
        """Renew the lease, or lease another number if it was lost."""
        if self._held is None or self._ids is None:
            await self.lease()
            return
        before_ms = self._clock.now_ms()
        body = NodeBody(self._holder, before_ms + _LEASE_MS, self._ids.highest)
        try:
            self._held = await self._documents.write(self._held.key, encode(body), self._held)
            await self._skew.measure(self._held.key, before_ms, self._clock.now_ms())
        except PreconditionFailed:
            _log.warning("node_number_lost number=%d: another process took it; leasing a new one", self._ids.node)
            await self.lease()

    async def release(self) -> None:
        """Release the number when the store closes."""
        if self._held is not None and self._ids is not None:
            body = NodeBody(None, self._clock.now_ms(), self._ids.highest)
            with suppress(PreconditionFailed):
                await self._documents.write(self._held.key, encode(body), self._held)
