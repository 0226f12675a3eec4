"""Enqueue.

payloads                        dies here: orphans, which a sweep deletes
metadata, and the keys seen     one message without a key: made, and it is there
                                else one step (sheets.py): all of them or none
the policy, once more           a queue that is being deleted meanwhile refuses, and it is removed again
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec

from holdfast.model.answers import Enqueued
from holdfast.model.errors import OverQuota, StoreUnavailable
from holdfast.model.message import JSON, Draft, make_envelope
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy
from holdfast.model.rules import lifecycle
from holdfast.model.rules.idempotency import find_new, index_keys, make_results
from holdfast.model.rules.transitions import TRANSITIONS, Cause
from holdfast.stores.contract import QueueRow
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.results import being_deleted, check_accepts, no_such_queue
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.retries import Busy, answered, side_by_side, until_unchanged
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.cas_documents import CasWrite, ReadCasDocument
from holdfast.stores.objects.documents.document_format import KeyBody, MessageBody, encode
from holdfast.stores.objects.messages.counts import QueueCounts
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.operations.directory import ObjectDirectory
from holdfast.stores.objects.operations.node_numbers import ObjectNodeNumbers

# Until another's step with one of our keys has ended.
_TRIES = 300

DEFAULT_WINDOW_MS = QueuePolicy().dedup_window_ms

key_of = msgspec.msgpack.Decoder(KeyBody).decode


class _Seen(NamedTuple):
    """A key: the message that has it (None: nobody), and what stands in its place."""

    first: Enqueued | None
    held: ReadCasDocument | None


class ObjectEnqueue:
    def __init__(
        self, messages: ObjectMessages, directory: ObjectDirectory, nodes: ObjectNodeNumbers, counting: QueueCounts
    ) -> None:
        self._messages = messages
        self._sheets = messages.sheets
        self._directory = directory
        self._nodes = nodes
        self._counting = counting

    def take_ids(self, number: int, now_ms: int) -> list[int]:
        return self._nodes.take_ids(number, now_ms)

    async def enqueue(
        self,
        ref: QueueRef,
        drafts: list[Draft],
        now_ms: int,
        notices: Notices,
        *,
        auto_create: bool,
        reason: str | None = None,
        also: Sequence[CasWrite] = (),
        ids: list[int] | None = None,
    ) -> list[Enqueued]:
        """`also` is written in the same step, or `PreconditionFailed`."""
        row = await self._directory.find(ref)
        check_accepts(ref, row, auto_create=auto_create)
        config = await self._directory.config(ref.tenant)
        if not config.quotas.limits_totals:
            return await self._enqueue(ref, row, drafts, now_ms, notices, reason, also, ids)
        async with self._counting.lock(ref.tenant):
            return await self._enqueue(ref, row, drafts, now_ms, notices, reason, also, ids)

    async def _enqueue(
        self,
        ref: QueueRef,
        row: QueueRow | None,
        drafts: list[Draft],
        now_ms: int,
        notices: Notices,
        reason: str | None,
        also: Sequence[CasWrite],
        ids: list[int] | None,
    ) -> list[Enqueued]:
        ids = ids or self._nodes.take_ids(len(drafts), now_ms)
        ids = [id if draft.pieces is None else draft.pieces.place for id, draft in zip(ids, drafts, strict=True)]
        firsts = index_keys(drafts)
        has_payloads = is_again = False

        async def enqueue() -> list[Enqueued]:
            nonlocal row, has_payloads, is_again
            seen = await self._seen(ref, firsts, now_ms)
            window_ms = DEFAULT_WINDOW_MS if row is None else row.policy.dedup_window_ms
            repeated = {key: each.first for key, each in seen.items() if each.first is not None}
            places = find_new(drafts, firsts, repeated, remembers_keys=window_ms > 0)
            fresh = [(drafts[place], ids[place]) for place in places]
            whose = next((draft.pieces.place for draft in drafts if draft.pieces is not None), None)
            sizes = [draft.bytes for draft, _ in fresh]
            try:
                room = await self._counting.make_room(ref.tenant, sizes, now_ms, whose=whose) if fresh else []
            except OverQuota:
                if has_payloads:  # there was room at the first look, and others took it
                    keys = [layout.message(ref, id) for draft, id in zip(drafts, ids, strict=True) if draft.payload]
                    await self._sheets.delete(list(map(layout.payload_of, keys)))
                raise
            if row is None:
                row = await self._directory.create_queue(ref, now_ms)
                check_accepts(ref, row, auto_create=True)
            if not has_payloads:
                await self._put_payloads(ref, fresh)
                has_payloads = True
            was_again, is_again = is_again, True
            await self._write(row, fresh, seen, now_ms, notices, reason, also, room, is_again=was_again)
            return make_results(drafts, places, [id for _, id in fresh], repeated)

        return await until_unchanged(
            enqueue,
            f"others enqueue to {ref} with a key of this call, or to its tenant with quotas, all the time: later",
            tries=_TRIES,
            on=(Busy,) if also else (PreconditionFailed, Busy),
        )

    async def _seen(self, ref: QueueRef, keys: Collection[str], now_ms: int) -> dict[str, _Seen]:
        """Return the state of each key in the call."""

        async def look(key: str) -> _Seen:
            held = await self._sheets.read(layout.key(ref, key))
            if held is not None and held.is_busy:
                raise Busy
            body = None if held is None or held.body is None else key_of(held.body)
            first = None
            if body is not None and body.ends_at > now_ms:
                first = Enqueued(snowflake=body.id, given_correlation_id=body.given_correlation_id, duplicate=True)
            return _Seen(first, held)

        return dict(zip(keys, await side_by_side(keys, look), strict=True))

    async def _put_payloads(self, ref: QueueRef, fresh: list[tuple[Draft, int]]) -> None:
        async def put(each: tuple[Draft, int]) -> None:
            draft, id = each
            with answered():
                if draft.group is not None:
                    await self._sheets.bucket.put(layout.group_member(ref, draft.group, id), b"")
                if draft.payload:
                    await self._sheets.bucket.put(layout.payload_of(layout.message(ref, id)), draft.payload)

        await side_by_side([each for each in fresh if each[0].payload or each[0].group is not None], put)

    async def _write(
        self,
        row: QueueRow,
        fresh: list[tuple[Draft, int]],
        seen: dict[str, _Seen],
        now_ms: int,
        notices: Notices,
        reason: str | None,
        also: Sequence[CasWrite],
        room: Sequence[CasWrite],
        *,
        is_again: bool,
    ) -> None:
        default_ttl_ms = await self._directory.default_ttl_ms(row)
        bodies = [self._body(row.ref, draft, id, default_ttl_ms, now_ms, reason) for draft, id in fresh]
        # What a try before this one left, whose step does not hold.
        left = await self._left(row.ref, bodies) if is_again else {}
        writes = [CasWrite(at := layout.message(row.ref, body.id), encode(body), left.get(at)) for body in bodies]
        for draft, id in fresh:
            if draft.key is not None and row.policy.dedup_window_ms:
                key = KeyBody(id, draft.correlation_id, now_ms + row.policy.dedup_window_ms)
                writes.append(CasWrite(layout.key(row.ref, draft.key), encode(key), seen[draft.key].held))
        writes += also
        if not writes:
            return
        try:
            helds = await self._sheets.write_all(writes, room)
        except PreconditionFailed:
            if len(writes) > 1 or also or room:
                raise
            # Nobody else makes this id: if it is there, it was written, and changed since. If not, it may have been
            # settled meanwhile: that is not known.
            if await self._sheets.read(writes[0].key) is None:
                raise StoreUnavailable("the bucket refused a new message, and does not have it: try again") from None
            await self._check_queue(row, bodies, [], now_ms, notices)
            return
        await self._check_queue(row, bodies, helds[: len(bodies)], now_ms, notices)

    async def _left(self, ref: QueueRef, bodies: list[MessageBody]) -> dict[str, ReadCasDocument]:
        helds = await side_by_side(bodies, lambda body: self._sheets.read(layout.message(ref, body.id)))
        return {held.key: held for held in helds if held is not None}

    async def _check_queue(
        self, row: QueueRow, bodies: list[MessageBody], helds: list[ReadCasDocument], now_ms: int, notices: Notices
    ) -> None:
        for held, body in zip(helds, bodies, strict=False):
            self._messages.written(held, None, body, now_ms, notices)
            notices.ready(row.ref, body.life.visible_at)
            notices.deadline(body.life.expires_at)
        again = await self._directory.find(row.ref, fresh=True)
        if again is None or again.queue_id != row.queue_id:
            # Deleted meanwhile, so nobody sweeps them: another queue of this name must not find them.
            keys = [layout.message(row.ref, body.id) for body in bodies]
            await self._sheets.delete([*keys, *map(layout.payload_of, keys)])
            self._messages.shelves.forget(row.ref)
            raise no_such_queue(row.ref)
        if again.drain_until is not None:
            raise being_deleted(row.ref)

    def _body(
        self, ref: QueueRef, draft: Draft, id: int, default_ttl_ms: int | None, now_ms: int, reason: str | None
    ) -> MessageBody:
        envelope = make_envelope(draft, id, now_ms)
        body = MessageBody(
            id=id,
            tenant=ref.tenant,
            queue=ref.queue,
            enqueued_at=now_ms,
            size=draft.payload_bytes,
            checksum=crc32(draft.payload) if draft.pieces is None else draft.pieces.checksum,
            life=lifecycle.first_life(draft, default_ttl_ms, now_ms),
            content_type=envelope.content_type,
            is_json=draft.content_type == JSON if draft.is_json is None else draft.is_json,
            headers=draft.headers,
            ttl_ms=draft.ttl_ms,
            group=draft.group,
            given_correlation_id=draft.correlation_id,
            max_retries=draft.max_retries,
        )
        event = TRANSITIONS[None, Cause.ENQUEUE].event
        assert event is not None
        return self._messages.changes.noted(body, event, now_ms, reason=reason)
