"""Enqueueing: in one statement if nothing has to be decided first, else in a step."""

from holdfast.model.answers import Enqueued
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.rules.idempotency import make_results
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.enqueue import enqueue
from holdfast.stores.logic.quotas import check_quotas
from holdfast.stores.payloads.pieces import PIECES_ABOVE
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.postgres.transactions.runner import StepRunner
from holdfast.stores.postgres.transactions.shortcuts import enqueue_arguments, note_enqueued
from holdfast.stores.postgres.transactions.unit import PostgresParts, PostgresUnit

# How often the statement is run again because the queue or its tenant was changed meanwhile.
_TRIES = 50


class PostgresEnqueue:
    """The enqueue of the store, for calls that are on the driver's loop already."""

    def __init__(self, parts: PostgresParts, steps: StepRunner, *, uses_shortcuts: bool = True) -> None:
        self._cluster = parts.cluster
        self._directory = parts.directory
        self._nodes = parts.nodes
        self._steps = steps
        self._uses_shortcuts = uses_shortcuts

    async def enqueue(
        self, ref: QueueRef, drafts: list[Draft], now_ms: int, notices: Notices, *, auto_create: bool
    ) -> list[Enqueued]:
        """Store the drafts, as `Store.enqueue` says."""
        await self._nodes.confirm()
        if self._uses_shortcuts and all(_is_simple(draft) for draft in drafts):
            enqueued = await self._enqueue_at_once(ref, drafts, now_ms, notices)
            if enqueued is not None:
                return enqueued
        number = None
        if auto_create and await self._directory.known(ref) is None:
            number = await self._directory.take_number(ref)
        is_grouped = any(draft.group is not None for draft in drafts)

        async def work(unit: PostgresUnit) -> list[Enqueued]:
            if auto_create:
                await unit.open_or_create(ref, number, is_locked=is_grouped)
            else:
                await unit.open(ref, is_locked=is_grouped)
            return await enqueue(unit, ref, drafts, auto_create=False)

        return await self._steps.run(ref, work, now_ms, notices)

    async def _enqueue_at_once(
        self, ref: QueueRef, drafts: list[Draft], now_ms: int, notices: Notices
    ) -> list[Enqueued] | None:
        """Enqueue by one statement. Return None if the call needs a step."""
        info = await self._directory.known(ref)
        for _ in range(_TRIES):
            if info is None or info.row.drain_until is not None or info.has_quotas:
                break
            if info.config.quotas.max_message_bytes is not None:
                check_quotas(ref.tenant, info.config.quotas, 0, 0, [draft.bytes for draft in drafts])
            ids = self._nodes.take_ids(len(drafts), self._cluster.database_time(now_ms))
            arguments = enqueue_arguments(info, drafts, ids, self._cluster.time_argument(now_ms), None)
            [row] = await info.shard.fetch(SQL["enqueue"], *arguments)
            if row["key"] is not None:
                self._cluster.note_now(row["now"], now_ms)
                note_enqueued(info, drafts, row, notices)
                return make_results(drafts, range(len(drafts)), ids, {})
            info = await self._directory.load(ref)
        return None


def _is_simple(draft: Draft) -> bool:
    """Return whether the draft needs no decision first, and no rows beside its message."""
    return draft.key is None and draft.group is None and draft.pieces is None and len(draft.payload) <= PIECES_ABOVE
