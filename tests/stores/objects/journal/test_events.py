"""Each event is in the journal once, whatever else becomes of its message while it is collected."""

from typing import Any

import pytest

from holdfast.model.events import Event
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.testing import EmbeddedSubject


@pytest.mark.spec("6.2")
async def test_events_collected_while_a_dead_letter_is_carried_are_written_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores: list[ObjectStore] = []

    def make(dice: Any) -> ObjectStore:
        stores.append(ObjectStore(MemoryBucket(), dice, journal_retention_ms=86_400_000))
        return stores[-1]

    bring, carried = ObjectMessages._copy_payload_and_state, 0

    async def collect_and_bring(messages: ObjectMessages, moving: Any, *, is_back: bool) -> Any:
        """Collect the events of a message that is being moved, which empties its outbox after the move has read it."""
        nonlocal carried
        carried += 1
        await stores[-1]._parts.journal.collect()
        return await bring(messages, moving, is_back=is_back)

    monkeypatch.setattr(ObjectMessages, "_copy_payload_and_state", collect_and_bring)
    subject = EmbeddedSubject(make)
    async with subject.open() as hf:
        await hf.queue("q").enqueue("a", ttl=10)
        subject.clock.advance(10_000)
        for _ in range(3):
            await subject.sweep(hf)
        told = [event.event for event in await hf.journal()]
        assert carried
        assert told == [Event.ENQUEUED, Event.FAILED]
