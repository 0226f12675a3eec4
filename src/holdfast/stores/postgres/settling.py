"""Verdicts and state documents: what the holder of a lease says of its message."""

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.dice import Dice
from holdfast.model import lifecycle
from holdfast.model.answers import Result
from holdfast.model.events import Event
from holdfast.model.message import Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import NO_STATE, Settle, StateChange, Verdict
from holdfast.model.state_documents import lease_lost, saved
from holdfast.model.verdicts import judge
from holdfast.stores.answers import settled, stale
from holdfast.stores.driver import Driver, on_driver
from holdfast.stores.notices import Notices
from holdfast.stores.postgres.cluster import Cluster
from holdfast.stores.postgres.directory import Directory
from holdfast.stores.postgres.queues import QueueInfo
from holdfast.stores.postgres.rows import Entry, decode_state, encode_state, entry_of
from holdfast.stores.postgres.statements import SQL
from holdfast.stores.postgres.steps import Step
from holdfast.stores.postgres.upkeep import Upkeep

# Which verdicts a step is to give: is handed the step and the queue.
Choose = Callable[[Step, QueueInfo], Awaitable[list[Verdict]]]

# Read once: to find a member in its class costs as much as the rest of a loop over a batch.
_ACK, _SUCCEEDED = Settle.ACK, State.SUCCEEDED

_STATE = "SELECT state FROM items WHERE queue_key = $1 AND id = $2"
_SAVE = "UPDATE items SET state = $3 WHERE queue_key = $1 AND id = $2"


class Settling:
    def __init__(self, driver: Driver, cluster: Cluster, directory: Directory, upkeep: Upkeep, dice: Dice) -> None:
        self.driver = driver
        self._cluster = cluster
        self._directory = directory
        self._upkeep = upkeep
        self._dice = dice

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int, notices: Notices) -> list[Result]:
        info = await self._directory.known(ref)
        if info is None:
            return [stale(each.receipt.id) for each in verdicts]
        acked: dict[int, Result] = {}
        receipts = [verdict.receipt for verdict in verdicts if verdict.settle is _ACK]
        if len(receipts) == len(verdicts):
            acked = await self._ack(info, receipts, now_ms, notices)
            if len(acked) == len(verdicts):
                return [acked[verdict.receipt.id] for verdict in verdicts]
        # A receipt that stands here twice was good for once.
        first = {verdict.receipt.id: place for place, verdict in reversed(list(enumerate(verdicts)))}
        rest = [
            place
            for place, verdict in enumerate(verdicts)
            if verdict.receipt.id not in acked or first[verdict.receipt.id] != place
        ]
        results: dict[int, Result] = {}
        if rest:

            async def choose(step: Step, info: QueueInfo) -> list[Verdict]:
                return [verdicts[place] for place in rest]

            found = await self.settle_in_step(info, choose, now_ms, notices)
            results = dict(zip(rest, found or [stale(verdicts[place].receipt.id) for place in rest], strict=True))
        return [
            results[place] if place in results else acked[verdict.receipt.id] for place, verdict in enumerate(verdicts)
        ]

    async def _ack(self, info: QueueInfo, receipts: list[Receipt], now_ms: int, notices: Notices) -> dict[int, Result]:
        """Those that one statement could settle."""
        columns = zip(*receipts, strict=True)
        rows = await info.shard.fetch(SQL["ack"], info.key, self._cluster.given(now_ms), *map(list, columns))
        self._cluster.note_now(rows[0]["now"], now_ms)
        results = {
            id: Result(snowflake=id, ok=True, given_correlation_id=correlation_id, state=_SUCCEEDED)
            for _now, _drain_until, id, correlation_id in rows
            if id is not None
        }
        if results:
            notices.tally(info.ref, Event.SUCCEEDED, len(results))
            if rows[0]["drain_until"] is not None:
                notices.deadline(rows[0]["now"])
        return results

    async def settle_in_step(
        self, info: QueueInfo, choose: Choose, now_ms: int, notices: Notices
    ) -> list[Result] | None:
        """None if the queue is gone."""

        async def work(connection: Any) -> tuple[list[Result] | None, Notices]:
            fresh = Notices()
            opened = await self._upkeep.open(connection, info.shard, info.key, now_ms, fresh)
            if opened is None:
                return None, fresh
            queue, step = opened
            verdicts = await choose(step, queue)
            ids = sorted({verdict.receipt.id for verdict in verdicts})
            rows = await connection.fetch(SQL["lock_by_ids"], queue.key, ids)
            entries = {row["id"]: entry_of(row) for row in rows}
            results = [self._settle_one(step, queue, entries, verdict) for verdict in verdicts]
            await step.write()
            if queue.row.drain_until is not None:
                fresh.deadline(step.now_ms)
            return results, fresh

        results, fresh = await info.shard.step(work)
        notices.add(fresh)
        return results

    def _settle_one(self, step: Step, info: QueueInfo, entries: dict[int, Entry], verdict: Verdict) -> Result:
        id = verdict.receipt.id
        entry = entries.get(id)
        if entry is None or not lifecycle.holds(entry.life, verdict.receipt, step.now_ms):
            return stale(id, None if entry is None else entry.envelope)
        change = judge(entry.life, entry.envelope, verdict, info.row.policy, step.now_ms, self._dice.roll)
        step.apply(info, entry, change)
        if change.life is None or change.life.is_gone:
            del entries[id]
        return settled(entry.envelope, change.life)

    @on_driver
    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> str | None:
        info = await self._directory.known(ref)
        if info is None:
            raise lease_lost(receipt.id)

        async def work(connection: Any) -> str | None:
            opened = await self._upkeep.open(connection, info.shard, info.key, now_ms, Notices())
            rows = await connection.fetch(SQL["lock_by_ids"], info.key, [receipt.id]) if opened else []
            if opened is None or not rows or not lifecycle.holds(entry_of(rows[0]).life, receipt, opened[1].now_ms):
                raise lease_lost(receipt.id)
            raw = await connection.fetchval(_STATE, info.key, receipt.id)
            state = saved(NO_STATE if raw is None else decode_state(raw), change)
            await connection.execute(_SAVE, info.key, receipt.id, encode_state(state))
            return state.etag

        return await info.shard.step(work)
