"""A message's metadata after a step of its life, with the event that tells of it."""

from msgspec.structs import replace

from holdfast.model.events import Event
from holdfast.model.names import QueueRef
from holdfast.model.rules.lifecycle import Change, Life
from holdfast.stores.logic.results import event_of
from holdfast.stores.objects.documents.document_format import MessageBody, Note


class Changes:
    """Of one process, which counts its events."""

    def __init__(self, granter: str) -> None:
        self.granter = granter
        self._order = 0

    def after(self, body: MessageBody, change: Change, now_ms: int) -> MessageBody:
        if change.event is not None:
            body = self.noted(body, change.event, now_ms, change.life, reason=change.reason, error=change.error)
        if change.life is None or change.life.is_gone:
            return replace(body, life=change.life or body.life, is_gone=True)
        granter = self.granter if change.event is Event.CLAIMED or change.event is Event.EXTENDED else body.granter
        return replace(body, life=change.life, granter=granter)

    def noted(
        self,
        body: MessageBody,
        event: Event,
        now_ms: int,
        after: Life | None = None,
        *,
        reason: str | None = None,
        error: str | None = None,
        ref: QueueRef | None = None,
    ) -> MessageBody:
        """`after` is the life the event led to; without one, the message's last."""
        self._order += 1
        told = event_of(event, ref or body.ref, body.envelope(), body.life, now_ms, after, reason=reason, error=error)
        note = Note(body.noted + 1, self._order, told)
        return replace(body, noted=note.number, outbox=[*body.outbox, note])
