"""The state document and the progress of a message (SPEC 3.6)."""

import pytest

from holdfast.model.errors import Conflict, InvalidArgument, StaleLease
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject


class StateDocumentLaws:
    @proves("3.6")
    async def test_the_first_state_is_none_and_has_no_etag(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            [message] = await q.claim(state=True)
            assert (message.state, message.etag) == (None, None)

    async def test_a_state_that_was_not_claimed_cannot_be_read(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            [message] = await q.claim()
            with pytest.raises(InvalidArgument):
                _ = message.state

    @proves("3.6")
    async def test_each_save_returns_a_new_etag(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            [message] = await q.claim(state=True)
            etags = [await message.save_state({"step": step}) for step in range(3)]
            # Saving the same document again is a new save.
            etags.append(await message.save_state({"step": 2}))
            assert None not in etags
            assert len(set(etags)) == 4
            assert (message.state, message.etag) == ({"step": 2}, etags[-1])

    @proves("3.6")
    async def test_a_save_with_a_stale_etag_is_a_conflict_and_changes_nothing(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            [message] = await q.claim(state=True)
            with pytest.raises(Conflict):
                await message.save_state({"lost": 0}, etag="never given")
            first = await message.save_state({"kept": 1})
            second = await message.save_state({"kept": 2}, etag=first)
            for stale in (first, "never given", ""):
                with pytest.raises(Conflict):
                    await message.save_state({"lost": 1}, etag=stale)
            assert (message.state, message.etag) == ({"kept": 2}, second)
            await message.nack(delay=0)
            [again] = await q.claim(state=True)
            assert (again.state, again.etag) == ({"kept": 2}, second)

    @proves("3.6", "10.2")
    async def test_the_state_survives_a_retry_an_expiry_and_a_release(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            [message] = await q.claim(state=True)
            await message.save_state([1])
            await message.nack(delay=0)
            [message] = await q.claim(state=True, lease=1)
            assert message.state == [1]
            # The ETag from the claim is valid for the first save.
            etag = await message.save_state([1, 2])
            subject.clock.advance(1_000)
            [message] = await q.claim(state=True)
            await message.release()
            [message] = await q.claim(state=True)
            assert (message.state, message.etag) == ([1, 2], etag)

    @proves("3.6")
    async def test_a_dead_letter_and_a_redriven_message_keep_their_state(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, other = hf.queue("q"), hf.queue("other", tenant="acme")
            [id] = await q.enqueue(b"")
            [message] = await q.claim(state=True)
            etag = await message.save_state({"done": 3})
            await message.progress(40, "resized")
            await message.nack(final=True)
            progress = (await q.get(id)).progress
            assert progress is not None
            assert (progress.percent, progress.text) == (40, "resized")
            await q.redrive()
            [message] = await q.claim(state=True)
            assert (message.state, message.etag) == ({"done": 3}, etag)
            await message.release()
            await q.move("other", tenant="acme")
            [message] = await other.claim(state=True)
            assert (message.state, message.etag) == ({"done": 3}, etag)
            assert (await other.get(id)).progress == progress

    @proves("2.6", "3.6")
    async def test_only_the_current_lease_can_save_the_state(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            [old] = await q.claim(state=True, lease=1)
            await old.save_state("old")
            subject.clock.advance(1_000)
            # The save is refused even before the expired message is returned to the queue.
            with pytest.raises(StaleLease):
                await old.save_state("too late")
            with pytest.raises(StaleLease):
                await old.progress(10)
            [new] = await q.claim(state=True)
            with pytest.raises(StaleLease):
                await old.save_state("superseded")
            with pytest.raises(StaleLease):
                await old.progress(20)
            assert new.state == "old"
            await new.save_state("new")
            assert (await q.get(new.id)).progress is None
            await new.ack()
            with pytest.raises(StaleLease):
                await new.save_state("after the ack")

    async def test_each_message_has_its_own_state(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([b""] * 3)
            for number, message in enumerate(await q.claim(limit=3, state=True)):
                if number != 1:
                    await message.save_state(number)
                await message.nack(delay=0)
            assert [each.state for each in await q.claim(limit=3, state=True)] == [0, None, 2]

    @proves("3.6")
    async def test_progress_is_shown_by_a_look_up_and_does_not_change_the_document(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue(b"")
            assert (await q.get(id)).progress is None
            [message] = await q.claim(state=True)
            etag = await message.save_state({"a": 1})
            for percent, text in ((0, ""), (12.5, "an eighth"), (100, "é")):
                await message.progress(percent, text)
                shown = (await q.get(id)).progress
                assert shown is not None
                assert (shown.percent, shown.text) == (percent, text)
            # Progress must not change the ETag of the state document.
            await message.save_state({"a": 2}, etag=etag)
            await message.nack(delay=0)
            [message] = await q.claim(state=True)
            assert message.state == {"a": 2}
            assert (await q.get(id)).progress == shown

    async def test_saving_state_and_progress_writes_no_event_and_counts_no_bytes(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"12345")
            [message] = await q.claim(state=True)
            await message.save_state({"long": "x" * 1_000})
            await message.progress(50, "half")
            assert (await q.stats()).bytes == 5
            assert [event.event for event in await hf.journal()] == ["enqueued", "claimed"]

    async def test_an_acked_message_leaves_no_state_behind(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"", key="k")
            [message] = await q.claim(state=True)
            await message.save_state("mine")
            await message.ack()
            await q.enqueue(b"")
            [other] = await q.claim(state=True)
            assert (other.state, other.etag) == (None, None)
