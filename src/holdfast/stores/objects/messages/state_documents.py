"""State documents: written under the lease, by whoever holds it.

A message's metadata says that it has a state before the first one is written. Each claim of such a message writes the
state anew with its own lease version, so that a holder whose lease ended cannot write any more: what it read is gone.
After the first write the metadata says that the document must be there, so that `verify` can tell a lost one.
"""

import logging

import msgspec
from msgspec.structs import replace

from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import NO_STATE, StateChange, StateDocument
from holdfast.model.rules import lifecycle
from holdfast.model.rules.state_documents import apply_state_change, lease_lost
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.retries import Busy, until_unchanged
from holdfast.stores.objects.documents.json_documents import JsonDocuments, MessageStateDocument
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import ObjectMessages

_log = logging.getLogger("holdfast")

_TRIES = 20
_GAVE_UP = "the state of a message changes all the time: later"


class StateDocuments:
    def __init__(self, messages: ObjectMessages, papers: JsonDocuments) -> None:
        self._messages = messages
        self._papers = papers

    async def find(self, entry: IndexedMessage) -> StateDocument | None:
        """Return a message's state; None if it may have one, and there is none where the entry says."""
        if not entry.body.has_state:
            return NO_STATE
        held = await self._papers.read(entry.state_key, MessageStateDocument)
        return None if held is None else _document(held.paper)

    async def read(self, entry: IndexedMessage) -> StateDocument:
        return await self.find(entry) or NO_STATE

    async def take_over(self, entry: IndexedMessage) -> StateDocument:
        """By the claim that `entry` says."""
        if not entry.body.has_state:
            return NO_STATE
        key, version = entry.state_key, entry.body.life.version

        async def take_over() -> StateDocument:
            held = await self._papers.read(key, MessageStateDocument)
            if held is not None and held.paper.version >= version:
                return _document(held.paper)
            paper = MessageStateDocument(version=version) if held is None else replace(held.paper, version=version)
            return _document((await self._papers.write(key, paper, held)).paper)

        return await until_unchanged(take_over, _GAVE_UP, tries=_TRIES)

    async def save(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> str | None:
        async def save() -> str | None:
            entry = await self._messages.read(ref, receipt.id, now_ms)
            if entry is None or not lifecycle.holds(entry.body.life, receipt, now_ms):
                raise lease_lost(receipt.id)
            key = entry.state_key
            if not entry.body.has_state:
                apply_state_change(NO_STATE, change)  # refused before anything is written
                await self._messages.write(entry, replace(entry.body, has_state=True), now_ms, Notices())
            held = await self._papers.read(key, MessageStateDocument)
            paper = MessageStateDocument(version=receipt.version) if held is None else held.paper
            # Read after the state: a later claim writes the state, so our conditional write would then fail.
            entry = await self._messages.read(ref, receipt.id, now_ms)
            if entry is None or not lifecycle.holds(entry.body.life, receipt, now_ms):
                raise PreconditionFailed("the lease ended meanwhile")
            after = apply_state_change(_document(paper), change)
            await self._papers.write(key, _with(paper, after), held)
            await self._note_written(entry, now_ms)
            return after.etag

        return await until_unchanged(save, _GAVE_UP, tries=_TRIES)

    async def _note_written(self, entry: IndexedMessage, now_ms: int) -> None:
        """Record that the document must be there. The state is saved, whatever becomes of this."""
        if entry.body.is_state_written:
            return
        try:
            await self._messages.write(entry, replace(entry.body, is_state_written=True), now_ms, Notices())
        except (PreconditionFailed, Busy, StoreUnavailable) as error:
            _log.debug("that the state of message %s was written is recorded by its next save: %s", entry.id, error)


def _document(paper: MessageStateDocument) -> StateDocument:
    document = bytes(paper.document) if paper.has_document else None
    return StateDocument(document=document, etag=str(paper.etag) if paper.etag else None, progress=paper.progress)


def _with(paper: MessageStateDocument, state: StateDocument) -> MessageStateDocument:
    document = msgspec.Raw(b"null" if state.document is None else state.document)
    return replace(
        paper,
        etag=int(state.etag or 0),
        has_document=state.document is not None,
        document=document,
        progress=state.progress,
    )
