"""Claims: in one statement, or in a step for groups and ledgers."""

from typing import Any

from holdfast.dice import Dice
from holdfast.model.answers import Delivery
from holdfast.model.events import Event
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.model.rules.claims import next_claim_at
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.claims import ENDED_PER_CLAIM, claim
from holdfast.stores.logic.results import being_deleted
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.operations.queue_sweep import QueueSweep
from holdfast.stores.postgres.queues.queue_info import QueueInfo
from holdfast.stores.postgres.queues.registry import QueueRegistry
from holdfast.stores.postgres.schema.rows import decode_deliveries
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.postgres.transactions.runner import StepRunner
from holdfast.stores.postgres.transactions.unit import PostgresUnit
from holdfast.stores.reserved_message import Reserved
from holdfast.stores.values import Claims


class PostgresClaims:
    """The claims of the store, for calls that are on the driver's loop already."""

    def __init__(
        self,
        cluster: PostgresCluster,
        directory: QueueRegistry,
        steps: StepRunner,
        queue_sweep: QueueSweep,
        dice: Dice,
        *,
        uses_shortcuts: bool,
    ) -> None:
        self._cluster = cluster
        self._directory = directory
        self._steps = steps
        self._queue_sweep = queue_sweep
        self._dice = dice
        self._uses_shortcuts = uses_shortcuts

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int, notices: Notices) -> Claims:
        """Serve the asks, as `Store.claim` says. Payloads in pieces are left in pieces."""
        info = await self._directory.known(ref)
        if info is None:
            return Claims([[] for _ in asks], None)
        if self._uses_shortcuts:
            claims = await self._claim_at_once(info, asks, now_ms, notices)
            if claims is not None:
                return claims
        else:
            await self._queue_sweep.end_by_time(info, ENDED_PER_CLAIM, now_ms, notices)
        return await self._claim_in_step(ref, asks, now_ms, notices)

    async def _claim_at_once(
        self, info: QueueInfo, asks: list[ClaimRequest], now_ms: int, notices: Notices
    ) -> Claims | None:
        """Claim by one statement. Return None if the claim needs a step."""
        rows = await self._take(info, asks, now_ms, waits_for_ends=True)
        if not rows:  # the queue was deleted, and perhaps created again
            loaded = await self._directory.load(info.ref)
            rows = [] if loaded is None else await self._take(loaded, asks, now_ms, waits_for_ends=True)
            if loaded is None or not rows:
                return Claims([[] for _ in asks], None)
            info = loaded
        if rows[0]["drain_until"] is not None:
            raise being_deleted(info.ref)
        if rows[0]["is_due"]:
            await self._queue_sweep.end_by_time(info, ENDED_PER_CLAIM, now_ms, notices)
            rows = await self._take(info, asks, now_ms, waits_for_ends=False) or rows[:1]
        if rows[0]["has_groups"] or asks[0].ledger is not None:
            return None
        if not any(ask.limit for ask in asks):
            [row] = await info.shard.fetch(SQL["next_at"], info.key, False)
            is_still = rows[0]["is_paused"] or row["next_at"] is None
            return Claims([[] for _ in asks], None if is_still else self._cluster.caller_time(row["next_at"]))
        return self._share(info, asks, rows, now_ms, notices)

    async def _claim_in_step(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int, notices: Notices) -> Claims:
        async def work(unit: PostgresUnit) -> Claims:
            queue = await unit.open(ref, is_locked=True)
            # Leases and TTLs were ended before, in a step of their own, because that takes its locks in another order.
            claims = await claim(unit, ref, asks, self._dice.tokens, ends=0)
            if queue is not None and claims.next_at == unit.now_ms and _is_short(asks, claims.per_ask):
                # All due messages are taken. An immediate second claim would cost a transaction and find nothing.
                claims = claims._replace(next_at=await unit.next_at(queue))
            return claims

        claims = await self._steps.run(ref, work, now_ms, notices)
        return claims._replace(next_at=None if claims.next_at is None else self._cluster.caller_time(claims.next_at))

    async def claim_reserved(
        self,
        ref: QueueRef,
        asks: list[ClaimRequest],
        mine: list[Reserved],
        others: list[Reserved],
        now_ms: int,
        notices: Notices,
    ) -> Claims | None:
        """Claim exactly the messages `mine`, as many as are asked for, if they are unchanged and the next ones to be
        claimed, apart from `others`, which other claims have popped. Otherwise return None and change nothing."""
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
        """Return the messages that claims would take next, after `behind`, in order."""
        info = await self._directory.known(ref)
        if info is None:
            return []
        order_key = (-1, 0, 0) if behind is None else behind.order_key
        rows = await info.shard.fetch(SQL["reserve"], info.key, self._cluster.time_argument(now_ms), number, *order_key)
        return [Reserved(*row) for row in rows]

    async def _take(self, info: QueueInfo, asks: list[ClaimRequest], now_ms: int, *, waits_for_ends: bool) -> list[Any]:
        """Run the statement `claim`. For a claim with a ledger it only returns the state of the queue."""
        return await info.shard.fetch(SQL["claim"], *self._arguments(info, asks, now_ms, waits_for_ends=waits_for_ends))

    def _arguments(
        self, info: QueueInfo, asks: list[ClaimRequest], now_ms: int, *, waits_for_ends: bool
    ) -> tuple[Any, ...]:
        """Return the arguments of the statement `claim`."""
        firsts, lasts, total = [], [], 0
        for ask in asks:
            firsts.append(total + 1)
            total += 0 if ask.ledger is not None else ask.limit
            lasts.append(total)
        leases, owners = [ask.lease_ms for ask in asks], [ask.owner for ask in asks]
        seed = b"".join(self._dice.tokens(2))
        given = self._cluster.time_argument(now_ms)
        return info.key, given, total, seed, firsts, lasts, leases, owners, waits_for_ends

    def _share(
        self, info: QueueInfo, asks: list[ClaimRequest], rows: list[Any], now_ms: int, notices: Notices
    ) -> Claims:
        """Divide the claimed rows among the asks."""
        head = rows[0]
        self._cluster.note_now(head["now"], now_ms)
        taken = rows if head["id"] is not None else []
        per_ask: list[list[Delivery]] = []
        at = 0
        for ask in asks:
            part = taken[at : at + ask.limit]
            per_ask.append(decode_deliveries(part, with_state=ask.with_state))
            at += len(part)
        ends = [head[name] for name in ("delayed_at", "leased_at") if head[name] is not None]
        if head["ready_at"] is not None and head["ready_at"] > head["now"]:
            ends.append(head["ready_at"])
        if taken:
            notices.tally(info.ref, Event.CLAIMED, len(taken))
            info.shard.claimed += len(taken)
            # All leases of one ask end at the same time.
            ends.append(min(given[0].lease_expires_at for given in per_ask if given))
            notices.deadline(ends[-1])
        return Claims(per_ask, self._next_at(asks, per_ask, head["now"], None if head["is_paused"] else ends))

    def _next_at(
        self, asks: list[ClaimRequest], per_ask: list[list[Delivery]], stored_ms: int, ends: list[int] | None
    ) -> int | None:
        """Return when the next claim may find something, by the caller's clock. `ends` is None for a paused queue."""
        # After a short ask nothing is due, and the statement returned the next time already.
        next_at = next_claim_at(
            is_paused=ends is None,
            is_served=not _is_short(asks, per_ask) and all(per_ask),
            now_ms=stored_ms,
            soonest=lambda: min(ends or [], default=None),
        )
        return None if next_at is None else self._cluster.caller_time(next_at)


def _is_short(asks: list[ClaimRequest], per_ask: list[list[Delivery]]) -> bool:
    """Return whether an ask got fewer messages than its limit: it has then taken all due messages."""
    return any(len(given) < ask.limit for ask, given in zip(asks, per_ask, strict=True))


def _columns(reserved: list[Reserved]) -> list[list[Any]]:
    return [list(column) for column in zip(*reserved, strict=True)] if reserved else [[], [], [], []]
