"""Verdicts: simple acks in one statement, all others in a step."""

from holdfast.dice import Dice
from holdfast.model.answers import Result
from holdfast.model.events import Event
from holdfast.model.message import Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, Verdict
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.results import stale
from holdfast.stores.logic.verdicts import settle
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.queues.queue_info import QueueInfo
from holdfast.stores.postgres.queues.registry import QueueRegistry
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.postgres.transactions.runner import StepRunner

# Read once, because looking up an enum member costs as much as the rest of a loop over a batch.
_ACK, _SUCCEEDED = Settle.ACK, State.SUCCEEDED


class PostgresVerdicts:
    """The verdicts of the store, for calls that are on the driver's loop already."""

    def __init__(
        self, cluster: PostgresCluster, directory: QueueRegistry, steps: StepRunner, dice: Dice, *, uses_shortcuts: bool
    ) -> None:
        self._cluster = cluster
        self._directory = directory
        self._steps = steps
        self._dice = dice
        self._uses_shortcuts = uses_shortcuts

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int, notices: Notices) -> list[Result]:
        """Settle the verdicts, as `Store.settle` says."""
        info = await self._directory.known(ref)
        if info is None:
            return [stale(each.receipt.id) for each in verdicts]
        acked: dict[int, Result] = {}
        receipts = [verdict.receipt for verdict in verdicts if verdict.settle is _ACK]
        # Two verdicts on one message take effect in order, which the statement cannot do.
        if self._uses_shortcuts and len({receipt.id for receipt in receipts}) == len(verdicts):
            acked = await self._ack(info, receipts, now_ms, notices)
            if len(acked) == len(verdicts):
                return [acked[verdict.receipt.id] for verdict in verdicts]
        rest = [verdict for verdict in verdicts if verdict.receipt.id not in acked]
        found = await self._steps.run(ref, lambda unit: settle(unit, ref, rest, self._dice.roll), now_ms, notices)
        if not acked:
            return found
        results = acked | {result.snowflake: result for result in found}
        return [results[verdict.receipt.id] for verdict in verdicts]

    async def _ack(self, info: QueueInfo, receipts: list[Receipt], now_ms: int, notices: Notices) -> dict[int, Result]:
        """Return the results of the acks that one statement could settle."""
        columns = zip(*receipts, strict=True)
        rows = await info.shard.fetch(SQL["ack"], info.key, self._cluster.time_argument(now_ms), *map(list, columns))
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
