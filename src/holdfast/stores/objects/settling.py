"""Verdicts: each one conditional write of its message's metadata.

ack       the metadata: gone, or kept        from here on it succeeded; its events are collected, then it is deleted
failed    the metadata: Failed               from here on it is a dead letter; a sweep carries it to dlq/
others    the metadata
"""

from holdfast.dice import Dice
from holdfast.model import lifecycle
from holdfast.model.answers import Result
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.requests import Verdict
from holdfast.model.verdicts import judge
from holdfast.stores.answers import settled, stale
from holdfast.stores.contract import QueueRow
from holdfast.stores.notices import Notices
from holdfast.stores.objects.attempts import side_by_side, until_unchanged
from holdfast.stores.objects.directory import Directory
from holdfast.stores.objects.index import Entry
from holdfast.stores.objects.messages import Messages


class Settling:
    def __init__(self, messages: Messages, directory: Directory, dice: Dice) -> None:
        self._messages = messages
        self._directory = directory
        self._dice = dice

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int, notices: Notices) -> list[Result]:
        row = await self._directory.find(ref)
        if row is None:
            return [stale(each.receipt.id) for each in verdicts]
        results: list[Result | None] = [None] * len(verdicts)
        by_id: dict[int, list[int]] = {}
        for at, verdict in enumerate(verdicts):
            by_id.setdefault(verdict.receipt.id, []).append(at)

        async def settle(places: list[int]) -> None:
            for at in places:
                results[at] = await self._settle_one(row, verdicts[at], now_ms, notices)

        shelf = self._messages.shelves.of(ref)
        # Claims of this process see all of a call's verdicts, or none.
        with self._messages.shelves.hiding(shelf, set(by_id), now_ms):
            await side_by_side(by_id.values(), settle)
        self._messages.shelves.tell(row, notices)
        return [each for each in results if each is not None]

    async def _settle_one(self, row: QueueRow, verdict: Verdict, now_ms: int, notices: Notices) -> Result:
        """A verdict that cannot be written fails alone, and its lease stands."""
        try:
            return await self._try_to_settle(row, verdict, now_ms, notices)
        except StoreUnavailable as error:
            return Result(snowflake=verdict.receipt.id, ok=False, error=error.code, is_known=False)

    async def _try_to_settle(self, row: QueueRow, verdict: Verdict, now_ms: int, notices: Notices) -> Result:
        receipt = verdict.receipt
        known = self._known(row.ref, receipt.id)

        async def settle() -> Result:
            nonlocal known
            entry, known = known, None
            if entry is None or not lifecycle.holds(entry.body.life, receipt, now_ms):
                # What is known may be old: another process may have granted this lease.
                entry = await self._messages.read(row.ref, receipt.id, now_ms)
                if entry is None or not lifecycle.holds(entry.body.life, receipt, now_ms):
                    return stale(receipt.id, None if entry is None else entry.body.envelope())
            envelope = entry.body.envelope()
            change = judge(entry.body.life, envelope, verdict, row.policy, now_ms, self._dice.roll)
            body = self._messages.changes.after(entry.body, change, now_ms)
            await self._messages.write(entry, body, now_ms, notices)
            return settled(envelope, change.life)

        return await until_unchanged(settle, "the message changes all the time: later")

    def _known(self, ref: QueueRef, id: int) -> Entry | None:
        shelf = self._messages.shelves.known(ref)
        return None if shelf is None else shelf.index.entries.get(id)
