"""Read and write state documents, which only the holder of the lease may write.

A message's metadata says that it has a state before the first one is written. Each claim of such a message rewrites the
state with its own lease version, so that a previous holder's conditional write fails. After the first write the
metadata records that the document exists, so that `verify` can tell a lost one.
"""

import logging

import msgspec
from msgspec.structs import replace

from holdfast.model.answers import Saved
from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import to_uuid
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import NO_STATE, StateChange, StateDocument
from holdfast.model.rules import lifecycle
from holdfast.model.rules.state_documents import apply_state_change, lease_lost
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.retries import Busy, retry_conflicts
from holdfast.stores.objects.documents.json_documents import JsonDocuments, MessageStateDocument
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import ObjectMessages

_log = logging.getLogger("holdfast")

_TRIES = 20


class StateDocuments:
    """The state documents of a store."""

    def __init__(self, messages: ObjectMessages, json_documents: JsonDocuments) -> None:
        self._messages = messages
        self._json_documents = json_documents

    async def find(self, entry: IndexedMessage) -> StateDocument | None:
        """Return a message's state; None if a state document may exist but is missing at the key in the metadata."""
        if not entry.body.has_state:
            return NO_STATE
        current = await self._json_documents.read(entry.state_key, MessageStateDocument)
        return None if current is None else _to_state(current.content)

    async def read(self, entry: IndexedMessage) -> StateDocument:
        """Return a message's state."""
        return await self.find(entry) or NO_STATE

    async def take_over(self, entry: IndexedMessage) -> StateDocument:
        """Rewrite the state with the version of the claim in `entry`, and return it."""
        if not entry.body.has_state:
            return NO_STATE
        key, version = entry.state_key, entry.body.life.version

        async def take_over() -> StateDocument:
            current = await self._json_documents.read(key, MessageStateDocument)
            if current is not None and current.content.version >= version:
                return _to_state(current.content)
            document = (
                MessageStateDocument(version=version) if current is None else replace(current.content, version=version)
            )
            return _to_state((await self._json_documents.write(key, document, current)).content)

        return await retry_conflicts(take_over, key, self._messages.documents.pause, tries=_TRIES)

    async def save(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> Saved:
        """Save a state under a lease, and return its ETag and the message's correlation id.

        Raise `StaleLease` if the receipt does not hold the message.
        """

        async def save() -> Saved:
            entry = await self._messages.read(ref, receipt.id, now_ms)
            if entry is None or not lifecycle.holds(entry.body.life, receipt, now_ms):
                raise lease_lost(receipt.id)
            key = entry.state_key
            if not entry.body.has_state:
                apply_state_change(NO_STATE, change)  # refused before anything is written
                await self._messages.write(entry, replace(entry.body, has_state=True), now_ms, Notices())
            current = await self._json_documents.read(key, MessageStateDocument)
            stored = MessageStateDocument(version=receipt.version) if current is None else current.content
            # Check the lease after reading the state: a later claim rewrites the state, so this conditional write would
            # then fail.
            entry = await self._messages.read(ref, receipt.id, now_ms)
            if entry is None or not lifecycle.holds(entry.body.life, receipt, now_ms):
                raise PreconditionFailed("the lease ended meanwhile")
            after = apply_state_change(_to_state(stored), change)
            await self._json_documents.write(key, _with_state(stored, after), current)
            await self._note_written(entry, now_ms)
            return Saved(etag=after.etag, correlation_id=entry.body.envelope().correlation_id)

        return await retry_conflicts(
            save, f"the state of message {to_uuid(receipt.id)}", self._messages.documents.pause, tries=_TRIES
        )

    async def _note_written(self, entry: IndexedMessage, now_ms: int) -> None:
        """Record in the metadata that the state document exists. The state is saved even if this fails."""
        if entry.body.is_state_written:
            return
        try:
            await self._messages.write(entry, replace(entry.body, is_state_written=True), now_ms, Notices())
        except (PreconditionFailed, Busy, StoreUnavailable) as error:
            body = entry.body
            _log.debug(
                "state_not_recorded message=%s error=%s: its next save records it",
                entry.id,
                error,
                extra={**body.ref._asdict(), "correlation_id": body.given_correlation_id or to_uuid(entry.id)},
            )


def _to_state(stored: MessageStateDocument) -> StateDocument:
    document = bytes(stored.document) if stored.has_document else None
    return StateDocument(document=document, etag=str(stored.etag) if stored.etag else None, progress=stored.progress)


def _with_state(stored: MessageStateDocument, state: StateDocument) -> MessageStateDocument:
    return replace(
        stored,
        etag=int(state.etag or 0),
        has_document=state.document is not None,
        document=msgspec.Raw(b"null" if state.document is None else state.document),
        progress=state.progress,
    )
