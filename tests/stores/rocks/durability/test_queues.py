"""State besides messages that survives a closing and a crash: queues, tenants, and the journal with its last
position."""

import pytest

from holdfast.client.blocking import Holdfast
from holdfast.model.errors import Draining, QueueNotFound
from tests.crash.rocks import WEEK_MS, core_of, sweep
from tests.stores.rocks.durability.restartable_store import RestartableStore

# --- Queues ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("1.3", "3.8")
def test_policies_pauses_and_tenants_are_kept(restartable: RestartableStore) -> None:
    hf = restartable.open()
    hf.queue("mail", tenant="acme").set_policy(lease_ms=1_234, max_retries=7)
    hf.queue("mail", tenant="acme").pause()
    hf.tenant("acme").set(weight=5)
    hf.queue("mail", tenant="acme").enqueue(b"a")
    hf = restartable.reopen()
    queue = hf.queue("mail", tenant="acme")
    assert (queue.policy().lease_ms, queue.policy().max_retries) == (1_234, 7)
    assert hf.tenant("acme").get().weight == 5
    assert queue.stats().paused
    assert queue.claim(1) == []
    queue.resume()
    assert restartable.reopen().queue("mail", tenant="acme").claim(1)


def test_counters_are_as_they_were(restartable: RestartableStore) -> None:
    queue = restartable.open().queue("mail")
    queue.enqueue([b"%d" % number for number in range(10)])
    queue.enqueue(b"later", delay="1h", headers={"a": "b"})
    messages = queue.claim(4)
    messages[0].ack()
    messages[1].nack("broken", final=True)
    messages[2].nack("failed", delay="1h")
    before = queue.stats()
    assert (before.ready, before.delayed, before.in_flight, before.failed) == (6, 2, 1, 1)
    hf = restartable.reopen()
    assert hf.queue("mail").stats() == before
    assert hf.tenant("default").stats().bytes == before.bytes


@pytest.mark.spec("8.11")
def test_a_deletion_of_a_queue_continues(restartable: RestartableStore) -> None:
    hf = restartable.open()
    queue = hf.queue("mail")
    queue.enqueue([b"a", b"b"])
    [held] = queue.claim(1, lease="10m")
    queue.delete(force_after="1m")
    hf = restartable.reopen()
    queue = hf.queue("mail")
    with pytest.raises(Draining):
        queue.enqueue(b"c")
    assert queue.stats().draining
    restartable.clock.advance(60_000)
    sweep(hf)
    hf = restartable.reopen()
    with pytest.raises(QueueNotFound):
        hf.queue("mail").stats()
    assert not hf.queue("mail").ack([held.receipt])[0].ok


@pytest.mark.spec("1.3", "8.11")
def test_the_number_of_a_deleted_queue_is_never_given_again(restartable: RestartableStore) -> None:
    def number_of(hf: Holdfast, name: str) -> int:
        rows = hf._driver.run(core_of(hf).store.directory.list_queues("default"))
        [row] = [row for row in rows if row.ref.queue == name]
        return row.queue_id

    hf = restartable.open()
    numbers = []
    for _ in range(3):
        hf.queue("mail").enqueue(b"a", key="k")
        numbers.append(number_of(hf, "mail"))
        hf.queue("mail").delete(force_after=0)
        sweep(hf)
        hf = restartable.reopen()
        assert not hf.queues()
        assert hf.queue("mail").claim(1) == []
    assert numbers == sorted(set(numbers))


def test_a_deleted_queue_made_again_knows_nothing_of_the_old_one(restartable: RestartableStore) -> None:
    hf = restartable.open()
    queue = hf.queue("mail")
    queue.enqueue(b"a", key="k", group="g")
    queue.pause()
    queue.delete(force_after=0)
    sweep(hf)
    queue = restartable.reopen().queue("mail")
    [id] = queue.enqueue(b"b", key="k", group="g")
    assert not id.duplicate
    assert [message.payload for message in restartable.reopen().queue("mail").claim(10)] == [b"b"]


# --- The journal -----------------------------------------------------------------------------------------------------


def test_the_journal_continues_behind_its_last_position(restartable: RestartableStore) -> None:
    hf = restartable.open()
    hf.queue("mail").enqueue([b"a", b"b"])
    first = hf.journal()
    hf = restartable.reopen()
    assert list(hf.journal()) == list(first)
    assert not hf.journal(first.next)
    hf.queue("mail").claim(1)
    hf.queue("mail").enqueue(b"c")
    later = restartable.reopen().journal(first.next)
    assert [event.event for event in later] == ["claimed", "enqueued"]
    assert [event.seq for event in (*first, *later)] == [1, 2, 3, 4]


def test_a_journal_that_was_trimmed_to_nothing_continues_behind_its_last_position(
    restartable: RestartableStore,
) -> None:
    """A reader that kept its position must not miss later events."""
    hf = restartable.open()
    hf.queue("mail").enqueue([b"a", b"b", b"c"])
    [message, *_] = hf.queue("mail").claim(3)
    message.ack()
    position = hf.journal().next
    restartable.clock.step_to(restartable.clock.now_ms() + 2 * WEEK_MS)
    hf.queue("mail").purge()
    sweep(hf)
    position = hf.journal(position).next
    restartable.clock.step_to(restartable.clock.now_ms() + 2 * WEEK_MS)
    sweep(hf)
    assert not hf.journal()
    hf = restartable.reopen()
    [id] = hf.queue("mail").enqueue(b"d")
    assert [(event.event, event.snowflake) for event in hf.journal(position)] == [("enqueued", id.snowflake)]
