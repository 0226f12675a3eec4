"""Settle messages: all verdicts on one message are one conditional write of its metadata.

ack       the metadata: gone, or kept        from here on it succeeded; its events are collected, then it is deleted
failed    the metadata: Failed               from here on it is a dead letter; it is moved to dlq/ later
others    the metadata
"""

from holdfast.dice import Dice
from holdfast.model.answers import Result
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.requests import Verdict
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.results import stale
from holdfast.stores.logic.verdicts import settle
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.retries import retry_conflicts, run_concurrently
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.messages.unit import ObjectUnits, OpenQueue
from holdfast.stores.objects.operations.directory import ObjectDirectory
from holdfast.stores.values import QueueRow


class ObjectVerdicts:
    """Verdicts on messages."""

    def __init__(self, messages: ObjectMessages, directory: ObjectDirectory, units: ObjectUnits, dice: Dice) -> None:
        self._messages = messages
        self._directory = directory
        self._units = units
        self._dice = dice

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int, notices: Notices) -> list[Result]:
        """Return the result of each verdict. Messages are written independently of each other."""
        row = await self._directory.find(ref)
        if row is None:
            return [stale(each.receipt.id) for each in verdicts]
        by_id: dict[int, list[Verdict]] = {}
        for verdict in verdicts:
            by_id.setdefault(verdict.receipt.id, []).append(verdict)
        queue = self._messages.queues.get(ref)

        async def settle_message(id: int) -> list[Result]:
            return await self._settle(row, by_id[id], queue.index.entries.get(id), now_ms, notices)

        # Claims of this process see all of a call's verdicts, or none.
        with self._messages.queues.hide_until_written(queue, set(by_id), now_ms):
            settled = await run_concurrently(by_id, settle_message)
        self._messages.queues.notify(row, notices)
        results = {id: iter(each) for id, each in zip(by_id, settled, strict=True)}
        return [next(results[verdict.receipt.id]) for verdict in verdicts]

    async def _settle(
        self, row: QueueRow, verdicts: list[Verdict], known: IndexedMessage | None, now_ms: int, notices: Notices
    ) -> list[Result]:
        """Settle the verdicts on one message. If they cannot be written, only they fail, and the lease stays."""

        async def attempt() -> list[Result]:
            nonlocal known
            found, known = () if known is None else (known,), None
            unit = self._units.begin(now_ms, notices, OpenQueue(row), found=found)
            results = await settle(unit, row.ref, verdicts, self._dice.roll)
            if found and not all(result.ok for result in results):
                raise PreconditionFailed("the known message may be stale: another process may have granted this lease")
            await unit.write()
            return results

        try:
            return await retry_conflicts(attempt, "the message", self._messages.documents.pause)
        except StoreUnavailable as error:
            return [
                Result(snowflake=verdict.receipt.id, ok=False, error=error.code, is_known=False) for verdict in verdicts
            ]
