"""State documents: written under the lease, by whoever holds it.

A message's metadata says that it has a state before the first one is written. Each claim of such a message writes the
state anew with its own lease version, so that a holder whose lease ended cannot write any more: what it read is gone.
After the first write the metadata says that the document must be there, so that `verify` can tell a lost one.
"""

import logging

import msgspec
from msgspec.structs import replace

from holdfast.model import lifecycle
from holdfast.model.errors import Conflict, StaleLease, StoreUnavailable
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import NO_STATE, StateChange, StateDocument
from holdfast.stores.notices import Notices
from holdfast.stores.objects.bucket import Changed
from holdfast.stores.objects.index import Entry
from holdfast.stores.objects.messages import Messages
from holdfast.stores.objects.papers import Papers, StatePaper
from holdfast.stores.objects.sheets import Busy

_log = logging.getLogger("holdfast")

_TRIES = 20


class States:
    def __init__(self, messages: Messages, papers: Papers) -> None:
        self._messages = messages
        self._papers = papers

    async def read(self, entry: Entry) -> StateDocument:
        if not entry.body.has_state:
            return NO_STATE
        held = await self._papers.read(entry.state_key, StatePaper)
        return NO_STATE if held is None else _document(held.paper)

    async def take_over(self, entry: Entry) -> StateDocument:
        """By the claim that `entry` says."""
        if not entry.body.has_state:
            return NO_STATE
        key, version = entry.state_key, entry.body.life.version
        for _ in range(_TRIES):
            held = await self._papers.read(key, StatePaper)
            if held is not None and held.paper.version >= version:
                return _document(held.paper)
            paper = StatePaper(version=version) if held is None else replace(held.paper, version=version)
            try:
                return _document((await self._papers.write(key, paper, held)).paper)
            except Changed:
                continue
        raise StoreUnavailable("the state of a message changes all the time: later")

    async def save(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> str | None:
        for _ in range(_TRIES):
            entry = await self._messages.read(ref, receipt.id, now_ms)
            if entry is None or not lifecycle.holds(entry.body.life, receipt, now_ms):
                raise StaleLease(f"the lease on {receipt.id} is no longer held by this receipt")
            key = entry.state_key
            if not entry.body.has_state:
                if change.etag is not None and change.progress is None:
                    raise _conflict(None, change)
                try:
                    await self._messages.write(entry, replace(entry.body, has_state=True), now_ms, Notices())
                except (Changed, Busy):
                    continue
            held = await self._papers.read(key, StatePaper)
            paper = StatePaper(version=receipt.version) if held is None else held.paper
            # Read after the state: a later claim writes the state, so our conditional write would then fail.
            entry = await self._messages.read(ref, receipt.id, now_ms)
            if entry is None or not lifecycle.holds(entry.body.life, receipt, now_ms):
                continue
            etag = _etag(paper)
            if change.progress is not None:
                after = replace(paper, progress=change.progress)
            elif change.etag != etag:
                raise _conflict(etag, change)
            else:
                document = msgspec.Raw(b"null" if change.document is None else change.document)
                after = replace(paper, document=document, has_document=change.document is not None, etag=paper.etag + 1)
            try:
                written = await self._papers.write(key, after, held)
            except Changed:
                continue
            await self._note_written(entry, now_ms)
            return _etag(written.paper)
        raise StoreUnavailable("the state of a message changes all the time: later")

    async def _note_written(self, entry: Entry, now_ms: int) -> None:
        """Record that the document must be there. The state is saved, whatever becomes of this."""
        if entry.body.is_state_written:
            return
        try:
            await self._messages.write(entry, replace(entry.body, is_state_written=True), now_ms, Notices())
        except (Changed, Busy, StoreUnavailable) as error:
            _log.debug("that the state of message %s was written is recorded by its next save: %s", entry.id, error)


def _etag(paper: StatePaper) -> str | None:
    return str(paper.etag) if paper.etag else None


def _document(paper: StatePaper) -> StateDocument:
    document = bytes(paper.document) if paper.has_document else None
    return StateDocument(document=document, etag=_etag(paper), progress=paper.progress)


def _conflict(etag: str | None, change: StateChange) -> Conflict:
    return Conflict(f"the state's ETag is {etag}, not {change.etag}: read it again", etag=etag)
