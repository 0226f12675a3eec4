"""Enqueue messages.

payloads above 16 KiB           crash: orphans, which a sweep deletes
metadata, and keys              one message without a key is one write; otherwise one step (cas_documents.py)
read the policy again           if the queue is being deleted meanwhile, the call fails
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple
from zlib import crc32

from holdfast.model.answers import Enqueued
from holdfast.model.errors import OverQuota, StoreUnavailable
from holdfast.model.message import JSON, Draft, make_envelope
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy
from holdfast.model.rules import lifecycle
from holdfast.model.rules.idempotency import find_new, index_keys, make_results
from holdfast.model.rules.transitions import TRANSITIONS, Cause
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.results import being_deleted, check_accepts, no_such_queue
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.retries import Busy, as_unavailable, retry_conflicts, run_concurrently
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import MAX_INLINE_BYTES, KeyBody, MessageBody, is_small
from holdfast.stores.objects.documents.cas_documents import CasWrite, ReadCasDocument
from holdfast.stores.objects.documents.protobuf_mapping import BodyDecoder, encode
from holdfast.stores.objects.messages.counts import QueueCounts
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.operations.directory import ObjectDirectory
from holdfast.stores.objects.operations.node_numbers import ObjectNodeNumbers
from holdfast.stores.values import QueueRow

# Attempts while other processes have undecided steps with the same keys.
_TRIES = 300

DEFAULT_WINDOW_MS = QueuePolicy().dedup_window_ms

decode_key = BodyDecoder(KeyBody)


class _KeyState(NamedTuple):
    """An idempotency key: its first message (None: the key is unused), and its document."""

    first: Enqueued | None
    current: ReadCasDocument | None


def has_payload_object(draft: Draft) -> bool:
    """Return whether the payload is stored as an object of its own before the metadata is written."""
    return len(draft.payload) > MAX_INLINE_BYTES


class ObjectEnqueue:
    """The enqueue operation, for callers and for schedules."""

    def __init__(
        self, messages: ObjectMessages, directory: ObjectDirectory, nodes: ObjectNodeNumbers, queue_counts: QueueCounts
    ) -> None:
        self._messages = messages
        self._documents = messages.documents
        self._directory = directory
        self._nodes = nodes
        self._queue_counts = queue_counts

    def take_ids(self, number: int, now_ms: int) -> list[int]:
        """Return new message ids."""
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
        extra_writes: Sequence[CasWrite] = (),
        ids: list[int] | None = None,
    ) -> list[Enqueued]:
        """Enqueue drafts, all of them or none.

        `extra_writes` are written in the same step; if their documents have changed, `PreconditionFailed` is raised.
        `reason` is for the journal. `ids` are used if given.
        """
        row = await self._directory.find(ref)
        check_accepts(ref, row, auto_create=auto_create)
        config = await self._directory.config(ref.tenant)
        if not config.quotas.limits_totals:
            return await self._enqueue(ref, row, drafts, now_ms, notices, reason, extra_writes, ids)
        async with self._queue_counts.lock(ref.tenant):
            return await self._enqueue(ref, row, drafts, now_ms, notices, reason, extra_writes, ids)

    async def _enqueue(
        self,
        ref: QueueRef,
        row: QueueRow | None,
        drafts: list[Draft],
        now_ms: int,
        notices: Notices,
        reason: str | None,
        extra_writes: Sequence[CasWrite],
        ids: list[int] | None,
    ) -> list[Enqueued]:
        ids = ids or self._nodes.take_ids(len(drafts), now_ms)
        ids = [id if draft.pieces is None else draft.pieces.blob_id for id, draft in zip(ids, drafts, strict=True)]
        firsts = index_keys(drafts)
        has_payloads = is_retry = False

        async def enqueue() -> list[Enqueued]:
            nonlocal row, has_payloads, is_retry
            key_states = await self._read_keys(ref, firsts, now_ms)
            window_ms = DEFAULT_WINDOW_MS if row is None else row.policy.dedup_window_ms
            repeated = {key: each.first for key, each in key_states.items() if each.first is not None}
            new_indexes = find_new(drafts, firsts, repeated, remembers_keys=window_ms > 0)
            new = [(drafts[index], ids[index]) for index in new_indexes]
            upload_id = next((draft.pieces.blob_id for draft in drafts if draft.pieces is not None), None)
            sizes = [draft.bytes for draft, _ in new]
            try:
                quota_writes = (
                    await self._queue_counts.reserve_quota(ref.tenant, sizes, now_ms, upload_id=upload_id)
                    if new
                    else []
                )
            except OverQuota:
                if has_payloads:  # the quota was free at first, and other processes used it up meanwhile
                    keys = [
                        layout.message(ref, id)
                        for draft, id in zip(drafts, ids, strict=True)
                        if has_payload_object(draft)
                    ]
                    await self._documents.delete(list(map(layout.payload_of, keys)))
                raise
            if row is None:
                row = await self._directory.create_queue(ref, now_ms)
                check_accepts(ref, row, auto_create=True)
            if not has_payloads:
                await self._put_payloads(ref, new)
                has_payloads = True
            was_retry, is_retry = is_retry, True
            await self._write(
                row, new, key_states, now_ms, notices, reason, extra_writes, quota_writes, is_retry=was_retry
            )
            return make_results(drafts, new_indexes, [id for _, id in new], repeated)

        return await retry_conflicts(
            enqueue,
            f"queue {ref}, from enqueues with the same keys or into the same tenant with quotas",
            self._documents.pause,
            tries=_TRIES,
            on=(Busy,) if extra_writes else (PreconditionFailed, Busy),
        )

    async def _read_keys(self, ref: QueueRef, keys: Collection[str], now_ms: int) -> dict[str, _KeyState]:
        """Return the state of each key of the call. Raise `Busy`."""

        async def read_key(key: str) -> _KeyState:
            current = await self._documents.read(layout.key(ref, key))
            if current is not None and current.is_busy:
                raise Busy(current.content.step)
            body = None if current is None or current.body is None else decode_key(current.body)
            first = None
            if body is not None and body.ends_at > now_ms:
                first = Enqueued(snowflake=body.id, given_correlation_id=body.given_correlation_id, duplicate=True)
            return _KeyState(first, current)

        return dict(zip(keys, await run_concurrently(keys, read_key), strict=True))

    async def _put_payloads(self, ref: QueueRef, new: list[tuple[Draft, int]]) -> None:
        async def put(each: tuple[Draft, int]) -> None:
            draft, id = each
            with as_unavailable():
                if draft.group is not None:
                    await self._documents.bucket.put(layout.group_member(ref, draft.group, id), b"")
                if has_payload_object(draft):
                    await self._documents.bucket.put(layout.payload_of(layout.message(ref, id)), draft.payload)

        await run_concurrently([each for each in new if has_payload_object(each[0]) or each[0].group is not None], put)

    async def _write(
        self,
        row: QueueRow,
        new: list[tuple[Draft, int]],
        key_states: dict[str, _KeyState],
        now_ms: int,
        notices: Notices,
        reason: str | None,
        extra_writes: Sequence[CasWrite],
        quota_writes: Sequence[CasWrite],
        *,
        is_retry: bool,
    ) -> None:
        default_ttl_ms = await self._directory.default_ttl_ms(row)
        bodies = [self._body(row.ref, draft, id, default_ttl_ms, now_ms, reason) for draft, id in new]
        # Documents written by a previous try, whose step was aborted.
        earlier = await self._read_earlier_writes(row.ref, bodies) if is_retry else {}
        writes = [CasWrite(at := layout.message(row.ref, body.id), encode(body), earlier.get(at)) for body in bodies]
        for draft, id in new:
            if draft.key is not None and row.policy.dedup_window_ms:
                key = KeyBody(id, draft.correlation_id, now_ms + row.policy.dedup_window_ms)
                writes.append(CasWrite(layout.key(row.ref, draft.key), encode(key), key_states[draft.key].current))
        writes += extra_writes
        if not writes:
            return
        try:
            documents = await self._documents.write_all(writes, quota_writes)
        except PreconditionFailed:
            if len(writes) > 1 or extra_writes or quota_writes:
                raise
            # No other process makes this id. If the message exists, it was written and has changed since; if not, it
            # may have been settled meanwhile, which cannot be known.
            if await self._documents.read(writes[0].key) is None:
                raise StoreUnavailable("the bucket refused a new message but does not have it; try again") from None
            await self._check_queue(row, bodies, [], now_ms, notices)
            return
        await self._check_queue(row, bodies, documents[: len(bodies)], now_ms, notices)

    async def _read_earlier_writes(self, ref: QueueRef, bodies: list[MessageBody]) -> dict[str, ReadCasDocument]:
        documents = await run_concurrently(bodies, lambda body: self._documents.read(layout.message(ref, body.id)))
        return {current.key: current for current in documents if current is not None}

    async def _check_queue(
        self, row: QueueRow, bodies: list[MessageBody], documents: list[ReadCasDocument], now_ms: int, notices: Notices
    ) -> None:
        for current, body in zip(documents, bodies, strict=False):
            self._messages.record_written(current, None, body, now_ms, notices)
            notices.ready(row.ref, body.life.visible_at)
            notices.deadline(body.life.expires_at)
        again = await self._directory.find(row.ref, fresh=True)
        if again is None or again.queue_id != row.queue_id:
            # The queue was deleted meanwhile, so no sweep finds these messages. A new queue of this name must not see
            # them.
            keys = [layout.message(row.ref, body.id) for body in bodies]
            payloads = [layout.message(row.ref, body.id) for body in bodies if body.has_payload_object]
            await self._documents.delete([*keys, *map(layout.payload_of, payloads)])
            self._messages.queues.forget(row.ref)
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
            is_inline=is_small(len(draft.payload)),
            payload=draft.payload if is_small(len(draft.payload)) else b"",
        )
        event = TRANSITIONS[None, Cause.ENQUEUE].event
        assert event is not None
        return self._messages.changes.add_event(body, event, now_ms, reason=reason)
