"""Sheets in a bucket: read, written where they are still what was read, several of them in one step.

A write whose answer was lost is looked for: it is this one's if the sheet that stands there has its nonce, or had.

**A step over several sheets.** Each is written with the step's id and with what it said before; then the step's record
is made, by which all of them hold at once. Until then readers see what was there before. Whoever finds a step that has
no record some time after it began makes one that says it does not hold: of the two records, one can be made. That is
safe at any time; to wait a while first only spares a slow process from doing it again.

    write sheets, each with step and prior     dies here: none holds, and they go back
    make .holdfast/step/<id> {holds}           from here on all of them hold
    write sheets without step, delete record   dies here: the next sweep does it
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec

from holdfast.clock import Clock
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.objects.buckets.bucket import Bucket, ObjectMissing, ObjectVersion, PreconditionFailed, Unanswered
from holdfast.stores.objects.buckets.retries import (
    Busy,
    answered,
    read_object,
    side_by_side,
    unavailable,
    until_unchanged,
)
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.document_format import (
    CasDocument,
    StepBody,
    decode_sheet,
    encode,
    encode_sheet,
    new_nonce,
)

_log = logging.getLogger("holdfast")

T = TypeVar("T")

_TRIES = 5
# A step that holds is finished after this long.
_FINISH_MS = 5_000
# How long the record of a step that does not hold is kept: no process takes so long to make one.
_KEEP_REFUSED_MS = 3_600_000

# The body of a sheet that says there is nothing.
NOTHING = b""

_step_of = msgspec.msgpack.Decoder(StepBody).decode


@dataclass(slots=True)
class ReadCasDocument:
    """A sheet as it was read. `body` is what holds (None: there is nothing), `sheet` what stands there."""

    key: str
    body: bytes | None
    sheet: CasDocument
    stamp: ObjectVersion
    # Its step is not decided: nothing can be written here for the moment.
    is_busy: bool = False


class CasWrite(NamedTuple):
    """One sheet of a step. `held` is what was read; None: there is none."""

    key: str
    body: bytes
    held: ReadCasDocument | None


class CasDocuments:
    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self.bucket = bucket
        self.clock = clock
        self.writes = 0
        # Steps known to hold, or not; and those of this process that are not decided yet.
        self._decided: dict[str, bool] = {}
        self._own: set[str] = set()
        # Records of steps that are to be finished, and from when on: what is written meanwhile anyway costs nothing.
        self.unfinished: dict[str, int] = {}

    # --- Reading ---------------------------------------------------------------------------------------------

    async def read(self, key: str) -> ReadCasDocument | None:
        """What holds. None: there is no sheet."""
        looked_for: str | None = None
        while True:
            found = await read_object(self.bucket, key)
            if found is None:
                return None
            raw, stamp = found
            sheet = decode_sheet(key, raw)
            if sheet.step is None:
                return ReadCasDocument(key, sheet.body or None, sheet, stamp)
            holds = await self._holds(sheet.step)
            if holds is None and sheet.step not in self._own and self._is_abandoned(sheet.step):
                # A step that was finished has no record any more, but then its sheets do not name it either: only one
                # that is still named after its record was looked for was never decided.
                if looked_for != sheet.step:
                    looked_for = sheet.step
                    continue
                holds = await self._decide(sheet.step, StepBody(False, []))
            body = sheet.body if holds else sheet.prior
            return ReadCasDocument(key, body or None, sheet, stamp, is_busy=holds is None)

    def _is_abandoned(self, step: str) -> bool:
        return self.clock.now_ms() >= _began_at(step) + self.bucket.patience_ms

    async def _holds(self, step: str) -> bool | None:
        """None: it has no record."""
        known = self._decided.get(step)
        if known is not None or step in self._own:
            return known
        found = await read_object(self.bucket, layout.step(step))
        return None if found is None else self._note(step, _step_of(decode_sheet(step, found.content).body).holds)

    def _note(self, step: str, holds: bool) -> bool:
        if len(self._decided) > 10_000:
            self._decided.clear()
        self._decided[step] = holds
        return holds

    # --- Writing ---------------------------------------------------------------------------------------------

    async def write(self, key: str, body: bytes, held: ReadCasDocument | None) -> ReadCasDocument:
        """Where `held` is what stands there; None: nothing does. `PreconditionFailed`, `StoreUnavailable`."""
        return await self._write(key, body, held, None)

    async def _write(self, key: str, body: bytes, held: ReadCasDocument | None, step: str | None) -> ReadCasDocument:
        if held is not None and held.is_busy:
            raise Busy
        prior = None if step is None or held is None else held.body
        raw, sheet = encode_sheet(body, None if held is None else held.sheet, step=step, prior=prior)
        self.writes += 1
        try:
            if held is None:
                stamp = await self.bucket.create(key, raw)
            else:
                stamp = await self.bucket.replace(key, raw, held.stamp.etag)
        except (PreconditionFailed, Unanswered) as error:
            return await self._was_written(key, sheet, error)
        return ReadCasDocument(key, body, sheet, stamp)

    async def _was_written(self, key: str, sheet: CasDocument, error: Exception) -> ReadCasDocument:
        """The sheet after all, if it is only the answer that was lost."""
        if (found := await read_object(self.bucket, key)) is not None:
            there = decode_sheet(key, found.content)
            if there.nonce == sheet.nonce:
                return ReadCasDocument(key, there.body, there, found.stamp)
            if sheet.nonce in there.past:
                # Written, and written over since: the caller must read it again before it goes on.
                return ReadCasDocument(key, sheet.body, sheet, ObjectVersion("overwritten", "overwritten"))
        if isinstance(error, PreconditionFailed):
            raise PreconditionFailed(str(error)) from None
        raise unavailable(error) from None

    # --- Steps -----------------------------------------------------------------------------------------------

    async def write_all(self, writes: Sequence[CasWrite], turns: Sequence[CasWrite] = ()) -> list[ReadCasDocument]:
        """Write all of these documents, or none.

        Raise `PreconditionFailed`, `Busy` (another process took this step for dead) or `StoreUnavailable`; then nothing
        is written. `turns` are written before the others, one by one, so that steps that would conflict again and again
        take turns.
        """
        if len(writes) == 1 and not turns:
            [only] = writes
            return [await self.write(*only)]
        began_at = self.clock.now_ms()
        step = f"{layout.digits(began_at)}-{new_nonce().hex()}"
        self._own.add(step)
        written: dict[str, ReadCasDocument] = {}
        try:

            async def write(each: CasWrite) -> None:
                written[each.key] = await self._write(each.key, each.body, each.held, step)

            for each in sorted(turns, key=lambda turn: turn.key):
                await write(each)
            await side_by_side(writes, write)
            if self.clock.now_ms() - began_at > _KEEP_REFUSED_MS // 2:
                raise StoreUnavailable("the bucket is too slow: a step took longer than any may take")
            holds = await self._decide(step, StepBody(True, [each.key for each in (*turns, *writes)]))
        except BaseException as error:
            await self._give_up(step, error)
            raise
        finally:
            self._own.discard(step)
        if not holds:
            raise Busy
        self.unfinished[layout.step(step)] = began_at + _FINISH_MS
        return [written[each.key] for each in writes]

    async def _decide(self, step: str, wanted: StepBody) -> bool:
        """Make the step's record. Whether it holds: by this record, or by another's."""
        for _ in range(_TRIES):
            try:
                await self._write(layout.step(step), encode(wanted), None, None)
            except PreconditionFailed:
                found = await read_object(self.bucket, layout.step(step))
                if found is None:
                    continue  # refused, though there is none
                return self._note(step, _step_of(decode_sheet(step, found.content).body).holds)
            return self._note(step, wanted.holds)
        raise StoreUnavailable("the record of a step can be neither made nor read: later")

    async def _give_up(self, step: str, error: BaseException) -> None:
        """Let nobody wait for what will not hold. If that fails as well, it is given up by whoever finds it."""
        try:
            self._own.discard(step)
            if step not in self._decided:
                await self._decide(step, StepBody(False, []))
        except (StoreUnavailable, ObjectMissing, Unanswered) as second:
            _log.debug("a step that failed (%s) was not given up: %s", error, second)

    async def settle(self, held: ReadCasDocument) -> ReadCasDocument | None:
        """A sheet whose step is decided, written as what holds; None: there is nothing. Exactly this one is written, or
        deleted: the process whose step it was may be making another."""
        if held.sheet.step is None or held.is_busy:
            return held
        if held.body is None:
            await self.write_nothing(held)
            return None
        return await self.write(held.key, held.body, held)

    async def write_nothing(self, held: ReadCasDocument) -> None:
        """An empty sheet in its place; gone where the bucket can delete exactly this one."""
        emptied = await self.write(held.key, NOTHING, held)
        if self.bucket.deletes_exactly:
            with answered():
                await self.bucket.delete_exactly(held.key, emptied.stamp.etag)

    async def finish_due(self, limit: int, now_ms: int) -> None:
        """Steps whose time has come."""
        for key in [key for key, at_ms in self.unfinished.items() if at_ms <= now_ms][:limit]:
            if await self.finish(key, now_ms):
                self.unfinished.pop(key, None)
            else:
                self.unfinished[key] = now_ms + _KEEP_REFUSED_MS

    async def finish(self, key: str, now_ms: int) -> bool:
        """Of a step's record, some time after: settle what it wrote, then delete it. False: it must stay for now."""
        found = await read_object(self.bucket, key)
        if found is None:
            return True
        body = _step_of(decode_sheet(key, found.content).body)
        step = layout.own_name(key)
        if not body.holds:
            if now_ms - _began_at(step) < _KEEP_REFUSED_MS:
                return False
            await self.delete([key])
            return True
        await side_by_side(body.keys, lambda each: self._settle_of(step, each))
        await self.delete([key])
        return True

    async def _settle_of(self, step: str, key: str) -> None:
        async def settle() -> None:
            held = await self.read(key)
            if held is not None and held.sheet.step == step:
                await self.settle(held)

        await until_unchanged(settle, f"{key} changes all the time: later", tries=_TRIES)

    # --- Deleting --------------------------------------------------------------------------------------------

    async def delete(self, keys: Sequence[str]) -> None:
        with answered():
            await self.bucket.delete(keys)


def _began_at(step: str) -> int:
    return int(step.partition("-")[0])
