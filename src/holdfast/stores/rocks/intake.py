"""Enqueueing: what the disk, the quotas and the idempotency keys let in."""

from collections.abc import Callable

from holdfast.model.answers import Enqueued
from holdfast.model.idempotency import first_of_keys, new_places, results_of
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.stores.answers import being_deleted
from holdfast.stores.rocks.catalog import Catalog
from holdfast.stores.rocks.changes import Changes
from holdfast.stores.rocks.engine import Engine
from holdfast.stores.rocks.facts import Facts
from holdfast.stores.rocks.seen import SeenKeys
from holdfast.stores.rocks.shelf import Shelf
from holdfast.stores.rocks.staging import Staging
from holdfast.stores.room import DiskRoom


class Intake:
    def __init__(
        self,
        engine: Engine,
        catalog: Catalog,
        seen: SeenKeys,
        staging: Staging,
        facts: Facts,
        changes: Changes,
        room: DiskRoom,
    ) -> None:
        self._engine = engine
        self._catalog = catalog
        self._seen = seen
        self._staging = staging
        self._facts = facts
        self._changes = changes
        self._room = room

    async def enqueue(
        self,
        ref: QueueRef,
        drafts: list[Draft],
        now_ms: int,
        *,
        auto_create: bool,
        reason: str | None = None,
        also: Callable[[list[Enqueued]], None] | None = None,
    ) -> list[Enqueued]:
        """`reason` is for the journal; `also` writes what belongs to the same step, and reads nothing."""
        engine = self._engine
        self._room.check(now_ms, sum(draft.bytes for draft in drafts))
        known = self._catalog.find(ref) if auto_create else self._catalog.require(ref)
        # Most drafts have neither: then there is nothing to look up.
        groups = [draft.group for draft in drafts if draft.group is not None]
        firsts = first_of_keys(drafts)
        seen: dict[str, Enqueued] = {}
        if known is None:
            self._catalog.check_room_for_queue(ref.tenant)
        else:
            if known.row.drain_until is not None:
                raise being_deleted(ref)
            known.prepare(groups)
            if firsts:
                seen = self._seen.known(known, list(firsts), now_ms)
        self._staging.check(drafts)
        remembers_keys = known is None or known.row.policy.dedup_window_ms > 0
        places = new_places(drafts, firsts, seen, remembers_keys=remembers_keys)
        if self._catalog.has_quotas(ref.tenant):
            self._catalog.check_quotas(ref.tenant, [drafts[place].bytes for place in places])
        engine.begin()
        shelf = known or self._create(ref, groups)
        shelf.count_due(now_ms)
        default_ttl_ms = self._catalog.default_ttl_ms(shelf)
        engine.is_mid_change = True  # all of them or none: everything was read before
        ids = self._facts.ids.take(len(places), now_ms)
        for place, id in zip(places, ids, strict=True):
            self._changes.put_new(shelf, drafts[place], id, default_ttl_ms, now_ms, reason)
        enqueued = results_of(drafts, places, ids, seen)
        if also is not None:
            also(enqueued)
        engine.is_mid_change = False
        await engine.committed()
        return enqueued

    def _create(self, ref: QueueRef, groups: list[str]) -> Shelf:
        """Make a queue in the middle of a step: there is nothing on disk that it would have to read."""
        shelf = self._catalog.create(ref)
        shelf.start_empty(groups)
        return shelf
