"""Read documents, write them unless another write came first, and change several of them atomically.

If the response to a write is lost, the document is read again: the write succeeded if the stored document has its
nonce, or lists it among the past ones.

**A step over several documents.** Each document is written with the step's id and its prior body. Then the step's
record is created, which commits all of them at once. Until then readers see the prior bodies. A process that finds a
step without a record, some time after it began, creates a record that aborts it. Only one of the two records can be
created, so aborting is safe at any time; the delay only spares slow processes a repetition.

    write documents with step and prior            crash: not committed, readers see the prior bodies
    create .holdfast/step/<id> {is_committed}      from here on all documents are visible
    write documents without step, delete record    crash: the next sweep does this

How to change this format: see `document_format.py`. Processes of two versions may meet in one step, so a change to how
a step is decided needs a release that understands both ways before the one that uses the new way.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.background import wait_for_event
from holdfast.clock import Clock
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.objects.buckets.bucket import (
    PAGE,
    Bucket,
    ObjectMissing,
    ObjectVersion,
    PreconditionFailed,
    StoredObject,
    Unanswered,
)
from holdfast.stores.objects.buckets.retries import (
    Busy,
    as_unavailable,
    read_object,
    retry_conflicts,
    run_concurrently,
    unavailable,
)
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import StepBody
from holdfast.stores.objects.documents.document_format import CasDocument, decode_document, encode_document, new_nonce
from holdfast.stores.objects.documents.protobuf_mapping import BodyDecoder, encode

_log = logging.getLogger("holdfast")

_TRIES = 5
# Pause before a document of an undecided step is read again.
_PAUSE_MS = 20
# A committed step is finished after this time. Documents that are rewritten meanwhile need no extra write.
_FINISH_MS = 5_000
# Time for which the record of an aborted step is kept. No step takes this long, so none can be committed after that.
_KEEP_REFUSED_MS = 3_600_000

# The body of a document that counts as missing.
EMPTY = b""

_decode_step = BodyDecoder(StepBody)


@dataclass(slots=True)
class ReadCasDocument:
    """A document as it was read. `body` is the visible body (None: the document counts as missing), `content` the
    stored document."""

    key: str
    body: bytes | None
    content: CasDocument
    version: ObjectVersion
    # Its step is not decided yet, so it cannot be written for the moment.
    is_busy: bool = False


class CasWrite(NamedTuple):
    """A write in a step. `current` is the document that it replaces; None if there is none."""

    key: str
    body: bytes
    current: ReadCasDocument | None


class CasDocuments:
    """Reader and writer of the CAS documents of a bucket."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self.bucket = bucket
        self.clock = clock
        self.writes = 0
        # Known outcomes of steps, and the steps of this process that are not decided yet.
        self._decided: dict[str, bool] = {}
        self._undecided: set[str] = set()
        # Set when a step of this process ends, for calls that wait for it.
        self._ended: dict[str, asyncio.Event] = {}
        # Keys of step records, with the time from which on the steps are to be finished.
        self.unfinished: dict[str, int] = {}
        # The documents of this process's committed steps, by the key of the step's record, and the step that each of
        # those documents still names as far as this process knows.
        self._own_steps: dict[str, list[str]] = {}
        self._naming: dict[str, str] = {}

    # --- Reading ---------------------------------------------------------------------------------------------

    async def read(self, key: str) -> ReadCasDocument | None:
        """Return a document with its visible body, or None if it does not exist. Raise `StoreUnavailable`.

        A document of an undecided step is returned with `is_busy`. An abandoned step is aborted first.
        """
        looked_for: str | None = None
        while True:
            found = await read_object(self.bucket, key)
            if found is None:
                return None
            raw, version = found
            document = decode_document(key, raw)
            if document.step is None:
                return ReadCasDocument(key, document.body or None, document, version)
            is_committed = await self._read_outcome(document.step)
            if is_committed is None and document.step not in self._undecided and self._is_abandoned(document.step):
                # A finished step has no record either, but its documents do not name it any more. Only a step that is
                # still named after its record was looked up was never decided.
                if looked_for != document.step:
                    looked_for = document.step
                    continue
                is_committed = await self._decide(document.step, StepBody(False, []))
            body = document.body if is_committed else document.prior
            return ReadCasDocument(key, body or None, document, version, is_busy=is_committed is None)

    def _is_abandoned(self, step: str) -> bool:
        return self.clock.now_ms() >= _began_at(step) + self.bucket.step_timeout_ms

    async def _read_outcome(self, step: str) -> bool | None:
        """Return whether a step is committed; None if it has no record."""
        known = self._decided.get(step)
        if known is not None or step in self._undecided:
            return known
        found = await read_object(self.bucket, layout.step(step))
        if found is None:
            return None
        return self._remember_outcome(step, _is_committed(step, found))

    def _remember_outcome(self, step: str, is_committed: bool) -> bool:
        if len(self._decided) > 10_000:
            self._decided.clear()
        self._decided[step] = is_committed
        return is_committed

    # --- Writing ---------------------------------------------------------------------------------------------

    async def write(self, key: str, body: bytes, current: ReadCasDocument | None) -> ReadCasDocument:
        """Write a document if `current` is still the stored one (None: if none exists).

        Raise `PreconditionFailed` if another write came first, `Busy` if `current` belongs to an undecided step, and
        `StoreUnavailable`.
        """
        return await self._write(key, body, current, None)

    async def _write(self, key: str, body: bytes, current: ReadCasDocument | None, step: str | None) -> ReadCasDocument:
        if current is not None and current.is_busy:
            raise Busy(current.content.step)
        prior = None if step is None or current is None else current.body
        raw, document = encode_document(body, None if current is None else current.content, step=step, prior=prior)
        self.writes += 1
        try:
            if current is None:
                version = await self.bucket.create(key, raw)
            else:
                version = await self.bucket.replace(key, raw, current.version.etag)
        except (PreconditionFailed, Unanswered) as error:
            return await self._find_lost_write(key, document, error)
        self._naming.pop(key, None)
        return ReadCasDocument(key, body, document, version)

    async def _find_lost_write(self, key: str, document: CasDocument, error: Exception) -> ReadCasDocument:
        """Return the document if its write succeeded although its response was lost; otherwise raise the error."""
        if (found := await read_object(self.bucket, key)) is not None:
            there = decode_document(key, found.content)
            if there.nonce == document.nonce:
                return ReadCasDocument(key, there.body, there, found.version)
            if document.nonce in there.past:
                # Written, and replaced since: the caller must read it again before the next write.
                return ReadCasDocument(key, document.body, document, ObjectVersion("overwritten", "overwritten"))
        if isinstance(error, PreconditionFailed):
            raise PreconditionFailed(str(error)) from None
        raise unavailable(error) from None

    # --- Steps -----------------------------------------------------------------------------------------------

    async def write_all(self, writes: Sequence[CasWrite], guards: Sequence[CasWrite] = ()) -> list[ReadCasDocument]:
        """Write all of these documents, or none.

        Raise `PreconditionFailed`, `Busy` (another process aborted this step) or `StoreUnavailable`; then nothing is
        written. `guards` are written before the others, one by one in order of key, so that steps which would conflict
        again and again take turns.
        """
        if len(writes) == 1 and not guards:
            [only] = writes
            return [await self.write(*only)]
        began_at = self.clock.now_ms()
        step = f"{layout.pad_id(began_at)}-{new_nonce().hex()}"
        self._undecided.add(step)
        ended = self._ended[step] = asyncio.Event()
        written: dict[str, ReadCasDocument] = {}
        try:

            async def write(each: CasWrite) -> None:
                written[each.key] = await self._write(each.key, each.body, each.current, step)

            for each in sorted(guards, key=lambda guard: guard.key):
                await write(each)
            await run_concurrently(writes, write)
            if self.clock.now_ms() - began_at > _KEEP_REFUSED_MS // 2:
                raise StoreUnavailable("the bucket is too slow: a change of several documents timed out; try again")
            is_committed = await self._decide(step, StepBody(True, [each.key for each in (*guards, *writes)]))
        except BaseException as error:
            await self._abort(step, error)
            raise
        finally:
            self._undecided.discard(step)
            del self._ended[step]
            ended.set()
        if not is_committed:
            raise Busy(step)
        record = layout.step(step)
        self.unfinished[record] = began_at + _FINISH_MS
        self._own_steps[record] = list(written)
        self._naming.update(dict.fromkeys(written, step))
        return [written[each.key] for each in writes]

    async def _decide(self, step: str, wanted: StepBody) -> bool:
        """Create the step's record. Return whether the step is committed, by this record or by another process's."""
        for _ in range(_TRIES):
            try:
                await self._write(layout.step(step), encode(wanted), None, None)
            except PreconditionFailed:
                found = await read_object(self.bucket, layout.step(step))
                if found is None:
                    continue  # refused, although it does not exist
                return self._remember_outcome(step, _is_committed(step, found))
            return self._remember_outcome(step, wanted.is_committed)
        raise StoreUnavailable("the record of a step can neither be created nor read; try again")

    async def _abort(self, step: str, error: BaseException) -> None:
        """Abort a failed step, so that no call waits for it. If that fails too, the next reader of its documents aborts
        it."""
        try:
            self._undecided.discard(step)
            if step not in self._decided:
                await self._decide(step, StepBody(False, []))
        except (StoreUnavailable, ObjectMissing, Unanswered) as second:
            _log.debug("step_not_aborted step_error=%s error=%s", error, second)

    async def resolve(self, current: ReadCasDocument) -> ReadCasDocument | None:
        """Rewrite a document of a decided step with its visible body, without the step. Return it, or None if it counts
        as missing.

        Only the version that was read is replaced or deleted: the process that made the step may be writing another
        one.
        """
        if current.content.step is None or current.is_busy:
            return current
        if current.body is None:
            await self.erase(current)
            return None
        return await self.write(current.key, current.body, current)

    async def erase(self, current: ReadCasDocument) -> None:
        """Replace a document by an empty one, which counts as missing, and delete that where the bucket can do so
        exactly."""
        emptied = await self.write(current.key, EMPTY, current)
        if self.bucket.deletes_exactly:
            with as_unavailable():
                await self.bucket.delete_exactly(current.key, emptied.version.etag)

    async def finish_due(self, limit: int, now_ms: int) -> None:
        """Finish at most `limit` steps whose time has come."""
        for key in [key for key, at_ms in self.unfinished.items() if at_ms <= now_ms][:limit]:
            if await self.finish(key, now_ms):
                self.unfinished.pop(key, None)
            else:
                self.unfinished[key] = now_ms + _KEEP_REFUSED_MS

    async def finish(self, key: str, now_ms: int) -> bool:
        """Finish a step by its record: resolve its documents, then delete the record. Return False if the record must
        stay for now."""
        step = layout.stem(key)
        if (own := self._own_steps.get(key)) is not None:
            # Documents that this process has rewritten or deleted since do not name the step any more.
            named = [each for each in own if self._naming.get(each) == step]
        else:
            found = await read_object(self.bucket, key)
            if found is None:
                return True
            body = _decode_step(decode_document(key, found.content).body)
            if not body.is_committed:
                if now_ms - _began_at(step) < _KEEP_REFUSED_MS:
                    return False
                await self.delete([key])
                return True
            named = body.keys
        await run_concurrently(named, lambda each: self._resolve_key(step, each))
        for each in named:
            if self._naming.get(each) == step:
                del self._naming[each]
        await self.delete([key])
        self._own_steps.pop(key, None)
        return True

    async def _resolve_key(self, step: str, key: str) -> None:
        async def resolve() -> None:
            current = await self.read(key)
            if current is not None and current.content.step == step:
                await self.resolve(current)

        await retry_conflicts(resolve, key, self.pause, tries=_TRIES)

    async def pause(self, busy: Busy) -> None:
        """Wait before a document is read again: for 20 ms on the clock, or for the end of its step if that is sooner.

        The end of a step is known at once if the step is this process's own.
        """
        if busy.step in self._decided:
            return
        await wait_for_event(self.clock, self._ended.get(busy.step or "", asyncio.Event()), _PAUSE_MS)

    # --- Deleting --------------------------------------------------------------------------------------------

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, up to a thousand with each call; missing ones are ignored. Raise `StoreUnavailable`."""
        for at in range(0, len(keys), PAGE):
            with as_unavailable():
                await self.bucket.delete(keys[at : at + PAGE])
        for key in keys:
            self._naming.pop(key, None)


def _is_committed(step: str, record: StoredObject) -> bool:
    return _decode_step(decode_document(layout.step(step), record.content).body).is_committed


def _began_at(step: str) -> int:
    return int(step.partition("-")[0])
