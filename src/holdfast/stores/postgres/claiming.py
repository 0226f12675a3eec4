"""Claims: in one statement, or under the queue's lock where groups or a ledger are to be kept."""

from typing import Any

from holdfast.dice import Dice
from holdfast.model import lifecycle
from holdfast.model.answers import Delivery
from holdfast.model.claims import next_claim_at
from holdfast.model.events import Event
from holdfast.model.lifecycle import is_over
from holdfast.model.names import QueueRef
from holdfast.model.requests import Ask
from holdfast.stores.answers import being_deleted, delivery_of, receipt_of
from holdfast.stores.contract import Claims
from holdfast.stores.notices import Notices
from holdfast.stores.postgres.cluster import Cluster, QueueMoved
from holdfast.stores.postgres.directory import Directory
from holdfast.stores.postgres.ledgers import Ledgers
from holdfast.stores.postgres.queues import QueueInfo, info_of
from holdfast.stores.postgres.rows import Entry, deliveries_of, whole_entry_of
from holdfast.stores.postgres.statements import SQL
from holdfast.stores.postgres.steps import Step
from holdfast.stores.postgres.upkeep import Upkeep
from holdfast.stores.reserved import Reserved

# Leases and TTLs that one claim ends before it looks for messages; the rest is found by the next pass.
_ENDED_PER_CLAIM = 1_000


class Claiming:
    def __init__(self, cluster: Cluster, directory: Directory, upkeep: Upkeep, ledgers: Ledgers, dice: Dice) -> None:
        self._cluster = cluster
        self._directory = directory
        self._upkeep = upkeep
        self._ledgers = ledgers
        self._dice = dice

    async def claim(self, ref: QueueRef, asks: list[Ask], now_ms: int, notices: Notices) -> Claims:
        info = await self._directory.known(ref)
        if info is None:
            return Claims([[] for _ in asks], None)
        rows = await self._take(info, asks, now_ms, waits_for_ends=True)
        if not rows:  # it was deleted, and perhaps made again
            info = await self._directory.load(ref)
            rows = [] if info is None else await self._take(info, asks, now_ms, waits_for_ends=True)
            if info is None or not rows:
                return Claims([[] for _ in asks], None)
        if rows[0]["drain_until"] is not None:
            raise being_deleted(ref)
        if rows[0]["is_due"]:
            await self._upkeep.end_by_time(info, _ENDED_PER_CLAIM, now_ms, notices)
            rows = await self._take(info, asks, now_ms, waits_for_ends=False) or rows[:1]
        if rows[0]["has_groups"] or asks[0].ledger is not None:
            return await self._claim_in_step(info, asks, now_ms, notices)
        if not any(ask.limit for ask in asks):
            [row] = await info.shard.fetch(SQL["next_at"], info.key, False)
            is_still = rows[0]["is_paused"] or row["next_at"] is None
            return Claims([[] for _ in asks], None if is_still else self._cluster.callers(row["next_at"]))
        return self._share(info, asks, rows, now_ms, notices)

    async def claim_reserved(
        self,
        ref: QueueRef,
        asks: list[Ask],
        mine: list[Reserved],
        others: list[Reserved],
        now_ms: int,
        notices: Notices,
    ) -> Claims | None:
        """A claim of just these, as many as are asked for, if they are still what is to be claimed next, but for those
        that `others` were handed; else None, and nothing has changed."""
        info = await self._directory.known(ref)
        if info is None:
            return None
        arguments = self._arguments(info, asks, now_ms, waits_for_ends=True)
        reserved = (*_columns(mine), *_columns(others))
        rows = await info.shard.fetch(SQL["claim_reserved"], *arguments, *reserved)
        if not rows or rows[0]["id"] is None:
            return None
        return self._share(info, asks, rows, now_ms, notices)

    async def reserve(self, ref: QueueRef, number: int, behind: Reserved | None, now_ms: int) -> list[Reserved]:
        """What claims would take next, in order."""
        info = await self._directory.known(ref)
        if info is None:
            return []
        place = (-1, 0, 0) if behind is None else behind.place
        rows = await info.shard.fetch(SQL["reserve"], info.key, self._cluster.given(now_ms), number, *place)
        return [Reserved(*row) for row in rows]

    async def _take(self, info: QueueInfo, asks: list[Ask], now_ms: int, *, waits_for_ends: bool) -> list[Any]:
        """What the statement gave; of a ledger's claim only how the queue is."""
        return await info.shard.fetch(SQL["claim"], *self._arguments(info, asks, now_ms, waits_for_ends=waits_for_ends))

    def _arguments(self, info: QueueInfo, asks: list[Ask], now_ms: int, *, waits_for_ends: bool) -> tuple[Any, ...]:
        firsts, lasts, total = [], [], 0
        for ask in asks:
            firsts.append(total + 1)
            total += 0 if ask.ledger is not None else ask.limit
            lasts.append(total)
        leases, owners = [ask.lease_ms for ask in asks], [ask.owner for ask in asks]
        seed = b"".join(self._dice.tokens(2))
        given = self._cluster.given(now_ms)
        return info.key, given, total, seed, firsts, lasts, leases, owners, waits_for_ends

    def _share(self, info: QueueInfo, asks: list[Ask], rows: list[Any], now_ms: int, notices: Notices) -> Claims:
        head = rows[0]
        self._cluster.note_now(head["now"], now_ms)
        taken = rows if head["id"] is not None else []
        per_ask: list[list[Delivery]] = []
        at = 0
        for ask in asks:
            part = taken[at : at + ask.limit]
            per_ask.append(deliveries_of(part, with_state=ask.with_state))
            at += len(part)
        ends = [head[name] for name in ("delayed_at", "leased_at") if head[name] is not None]
        if head["ready_at"] is not None and head["ready_at"] > head["now"]:
            ends.append(head["ready_at"])
        if taken:
            notices.tally(info.ref, Event.CLAIMED, len(taken))
            info.shard.claimed += len(taken)
            # All of one ask end at once.
            ends.append(min(given[0].lease_expires_at for given in per_ask if given))
            notices.deadline(ends[-1])
        return Claims(per_ask, self._next_at(asks, per_ask, head["now"], None if head["is_paused"] else ends))

    def _next_at(
        self, asks: list[Ask], per_ask: list[list[Delivery]], stored_ms: int, ends: list[int] | None
    ) -> int | None:
        """By the caller's clock. `ends` is None for a paused queue."""
        # A short ask has taken all there was, and the statement told of the next instant already.
        is_short = any(len(given) < ask.limit for ask, given in zip(asks, per_ask, strict=True))
        next_at = next_claim_at(
            is_paused=ends is None,
            is_served=not is_short and all(per_ask),
            now_ms=stored_ms,
            soonest=lambda: min(ends or [], default=None),
        )
        return None if next_at is None else self._cluster.callers(next_at)

    # --- Under the queue's lock --------------------------------------------------------------------------------

    async def _claim_in_step(self, info: QueueInfo, asks: list[Ask], now_ms: int, notices: Notices) -> Claims:
        given = self._cluster.given(now_ms)

        async def work(connection: Any) -> tuple[Claims, Notices]:
            fresh = Notices()
            row = await connection.fetchrow(SQL["queue_locked"], info.ref.tenant, info.ref.queue, given)
            if row is None or row["key"] != info.key:
                return Claims([[] for _ in asks], None), fresh
            if row["moving_to"] is not None:
                raise QueueMoved(info.ref)
            queue = info_of(row, info.shard)
            if queue.row.drain_until is not None:
                raise being_deleted(info.ref)
            step = Step(connection, row["now"], given, fresh)
            ledger, is_reread = asks[0].ledger, False
            if ledger is not None and (held := await self._ledgers.reread(step, queue, *ledger)) is not None:
                per_ask, is_reread = [held], True
            else:
                per_ask = await self._serve(step, queue, asks)
                await step.write()
            ends = None
            if not queue.row.is_paused:
                next_at = await connection.fetchval(SQL["next_at"], queue.key, queue.has_groups)
                ends = [] if next_at is None else [next_at]
            fresh.ready_at.clear()  # a claim's own changes are told by its answer
            return Claims(per_ask, self._next_at(asks, per_ask, row["now"], ends), is_reread), fresh

        claims, fresh = await info.shard.step(work)
        notices.add(fresh)
        return claims

    async def _serve(self, step: Step, info: QueueInfo, asks: list[Ask]) -> list[list[Delivery]]:
        total = sum(ask.limit for ask in asks)
        if info.row.is_paused or not total:
            return [[] for _ in asks]
        rows = await step.connection.fetch(SQL["due"], info.key, step.now_ms, total)
        candidates = [whole_entry_of(row) for row in rows]
        candidates.reverse()
        per_ask = []
        for ask in asks:
            taken = await self._fill(step, info, candidates, ask.limit)
            for entry, token in zip(taken, self._dice.tokens(len(taken)), strict=True):
                change = lifecycle.claim(
                    entry.life,
                    info.row.policy,
                    step.now_ms,
                    token=token,
                    lease_ms=ask.lease_ms,
                    owner=ask.owner,
                    ledger=ask.ledger,
                )
                step.apply(info, entry, change)
            if ask.ledger is not None and taken:
                receipts = [receipt_of(entry.envelope, entry.life) for entry in taken]
                await self._ledgers.put(step, info, *ask.ledger, receipts)
            per_ask.append(
                [delivery_of(entry.envelope, entry.life, entry.state if ask.with_state else None) for entry in taken]
            )
        return per_ask

    async def _fill(self, step: Step, info: QueueInfo, candidates: list[Entry], limit: int) -> list[Entry]:
        """Out of the candidates, the first of them last; of a group one batch, with what stands behind its head."""
        taken: list[Entry] = []
        while candidates and len(taken) < limit:
            entry = candidates.pop()
            group = entry.envelope.group
            if group is None:
                taken.append(entry)
                continue
            for row in await step.connection.fetch(SQL["of_group"], info.key, group, limit - len(taken)):
                member = whole_entry_of(row)
                if member.life.visible_at > step.now_ms:
                    break
                if not is_over(member.life, step.now_ms):
                    taken.append(member)
        return taken


def _columns(reserved: list[Reserved]) -> list[list[Any]]:
    return [list(column) for column in zip(*reserved, strict=True)] if reserved else [[], [], [], []]
