"""Enqueueing: what the disk, the quotas and the idempotency keys let in."""

from collections.abc import Callable

from msgspec.structs import replace

from holdfast.model.answers import Enqueued
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
        has_keys = any(draft.key is not None for draft in drafts)
        remembers_keys = known is None or known.row.policy.dedup_window_ms > 0
        answers: list[Enqueued | None] = [None] * len(drafts)
        if known is None:
            self._catalog.check_room_for_queue(ref.tenant)
        else:
            if known.row.drain_until is not None:
                raise being_deleted(ref)
            known.prepare(groups)
            if has_keys:
                answers = self._seen.answers(known, drafts, now_ms)
        self._staging.check(drafts)
        fresh = _fresh(drafts, answers) if has_keys and remembers_keys else drafts
        if self._catalog.has_quotas(ref.tenant):
            self._catalog.check_quotas(ref.tenant, [draft.bytes for draft in fresh])
        engine.begin()
        shelf = known or self._create(ref, groups)
        shelf.count_due(now_ms)
        default_ttl_ms = self._catalog.default_ttl_ms(shelf)
        engine.is_mid_change = True  # all of them or none: everything was read before
        ids = iter(self._facts.ids.take(len(fresh), now_ms))
        own: dict[str, Enqueued] = {}
        enqueued: list[Enqueued] = []
        for draft, seen in zip(drafts, answers, strict=True):
            answer = seen or (own.get(draft.key) if draft.key is not None else None)
            if answer is None:
                answer = self._changes.put_new(shelf, draft, next(ids), default_ttl_ms, now_ms, reason)
                if draft.key is not None and remembers_keys:
                    own[draft.key] = replace(answer, duplicate=True)
            enqueued.append(answer)
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


def _fresh(drafts: list[Draft], answers: list[Enqueued | None]) -> list[Draft]:
    """Those that will be messages of their own: their key is new, to the queue and to this call."""
    first_of_key = {draft.key: draft for draft in reversed(drafts)}
    return [
        draft
        for draft, answer in zip(drafts, answers, strict=True)
        if answer is None and (draft.key is None or first_of_key[draft.key] is draft)
    ]
