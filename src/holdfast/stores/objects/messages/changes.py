"""Apply a life-cycle change to a message's metadata, and add its event to the outbox."""

from msgspec.structs import replace

from holdfast.model.events import Event
from holdfast.model.names import QueueRef
from holdfast.model.rules.lifecycle import Change, Life
from holdfast.stores.logic.results import event_of
from holdfast.stores.objects.documents.bodies import MessageBody, OutboxEvent


class Changes:
    """Changes made by one process, which numbers its events."""

    def __init__(self, granter: str) -> None:
        self.granter = granter
        self._order = 0

    def after(self, body: MessageBody, change: Change, now_ms: int) -> MessageBody:
        """Return the metadata after a change. A message that has ended keeps its last life, and is marked as gone."""
        if change.event is not None:
            body = self.add_event(body, change.event, now_ms, change.life, reason=change.reason, error=change.error)
        if change.life is None or change.life.is_gone:
            return replace(body, life=change.life or body.life, is_gone=True, payload=b"")
        granter = self.granter if change.event is Event.CLAIMED or change.event is Event.EXTENDED else body.granter
        return replace(body, life=change.life, granter=granter)

    def add_event(
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
        """Return the metadata with one more event in its outbox. `after` is the life that the event led to; by default
        the message's last one."""
        self._order += 1
        journal_event = event_of(
            event, ref or body.ref, body.envelope(), body.life, now_ms, after, reason=reason, error=error
        )
        note = OutboxEvent(body.event_count + 1, self._order, journal_event)
        return replace(body, event_count=note.number, outbox=[*body.outbox, note])
