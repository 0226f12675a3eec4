"""What outlives a closing and a crash: everything that was answered, with its numbers going on where they stood."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.blocking import Holdfast
from holdfast.model.errors import Draining, MessageNotFound, QueueNotFound
from holdfast.stores.rocks.database import Database
from holdfast.testing import ManualClock
from tests.crash.rocks import WEEK_MS, copy_store, core_of, open_store, sweep, verify_store

DAY_MS = 86_400_000
LARGE = (1 << 20) + 300_001


class Desk:
    """One store that a test opens again and again, on one clock: closed in order, or left as a kill leaves it."""

    def __init__(self, directory: Path, ends: str) -> None:
        self.clock = ManualClock()
        self._directory = directory
        self._ends = ends
        self._number = 0
        self._opened: list[Holdfast] = []
        self.path = directory / "0"

    def open(self, **options: Any) -> Holdfast:
        options.setdefault("settings", {"max_payload": 4 << 20})
        hf = open_store(self.path, self.clock, **options)
        self._opened.append(hf)
        return hf

    def reopen(self, **options: Any) -> Holdfast:
        """End what is open, check what it left, and open that."""
        [hf] = self._opened
        if self._ends == "closed":
            hf.close()
            self._opened.clear()
        else:
            self._number += 1
            self.path = copy_store(self.path, self._directory / str(self._number))
            self._opened.clear()
            hf.close()
        verify_store(self.path, f"after it was {self._ends}")
        return self.open(**options)

    def end(self) -> None:
        for hf in self._opened:
            hf.close()


@pytest.fixture(params=["closed", "killed"])
def desk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = Desk(tmp_path, request.param)
    yield desk
    desk.end()


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, "closed")
    yield desk
    desk.end()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, "killed")
    yield desk
    desk.end()


def payloads(hf: Holdfast, limit: int = 100) -> list[bytes]:
    return [message.payload for message in hf.queue("mail").claim(limit)]


# --- Versions and ids ------------------------------------------------------------------------------------------------


def test_after_a_closing_versions_go_on_by_one(closed: Desk) -> None:
    queue = closed.open().queue("mail")
    queue.enqueue(b"a")
    for expected in (1, 2):
        [message] = queue.claim(1)
        assert message.version == expected
        message.release()
    for expected in (3, 4):
        [message] = closed.reopen().queue("mail").claim(1)
        assert message.version == expected
        message.release()


def test_after_a_kill_versions_of_older_messages_jump_and_new_ones_begin_at_1(killed: Desk) -> None:
    queue = killed.open().queue("mail")
    queue.enqueue(b"old")
    [message] = queue.claim(1)
    assert message.version == 1
    message.release()
    highest = 1
    for _ in range(3):
        queue = killed.reopen().queue("mail")
        [message] = queue.claim(1)
        assert message.version > highest + 1_000
        highest = message.version
        message.release()
    queue.enqueue(b"new", priority=1)
    [message] = queue.claim(1)
    assert (message.payload, message.version) == (b"new", 1)


def test_a_version_never_goes_back_when_kills_and_closings_take_turns(killed: Desk) -> None:
    queue = killed.open().queue("mail")
    queue.enqueue(b"a")
    versions = []
    for number in range(6):
        killed._ends = "killed" if number % 2 else "closed"
        [message] = killed.reopen().queue("mail").claim(1)
        versions.append(message.version)
        message.release()
    assert versions == sorted(set(versions))


def test_ids_never_repeat_and_always_grow_even_if_the_clock_was_set_back(desk: Desk) -> None:
    hf = desk.open()
    seen = [id.snowflake for id in hf.queue("mail").enqueue([b"a"] * 10)]
    for back_ms in (1, 60_000, DAY_MS):
        desk.clock.step_to(desk.clock.now_ms() - back_ms)
        seen += [id.snowflake for id in desk.reopen().queue("mail").enqueue([b"a"] * 10)]
    assert seen == sorted(set(seen))


def test_an_id_is_not_given_again_after_its_message_is_gone(desk: Desk) -> None:
    queue = desk.open().queue("mail")
    ids = queue.enqueue([b"a", b"b"])
    queue.purge()
    assert desk.reopen().queue("mail").enqueue(b"c")[0].snowflake > ids[-1].snowflake


def test_a_store_keeps_its_node(desk: Desk) -> None:
    ids = [id.snowflake for id in desk.open().queue("mail").enqueue(b"a")]
    ids += [id.snowflake for id in desk.reopen().queue("mail").enqueue(b"b")]
    assert len({id >> 12 & 0x3FF for id in ids}) == 1


# --- Messages --------------------------------------------------------------------------------------------------------


def test_messages_keep_everything_they_were_sent_with_and_their_order(desk: Desk) -> None:
    queue = desk.open().queue("mail")
    queue.enqueue({"n": 1}, priority=7, headers={"colour": "red"}, correlation_id="ours", max_retries=9)
    queue.enqueue(b"first", priority=1)
    queue.enqueue(b"later")
    before = [queue.get(info.id, payload=True) for info in queue.list()]
    queue = desk.reopen().queue("mail")
    assert [queue.get(info.id, payload=True) for info in queue.list()] == before
    [first, second, third] = queue.claim(3)
    assert (first.payload, second.json(), third.payload) == (b"first", {"n": 1}, b"later")
    assert (second.headers, second.correlation_id) == ({"colour": "red"}, "ours")


def test_a_payload_in_chunks_comes_back_whole(desk: Desk) -> None:
    payload = bytes(range(256)) * (LARGE // 256 + 1)
    queue = desk.open().queue("mail")
    queue.enqueue(payload)
    queue = desk.reopen().queue("mail")
    [message] = queue.claim(1)
    assert message.payload == payload
    message.nack("failed", final=True)
    queue = desk.reopen().queue("mail")
    assert queue.get(message.id, payload=True).payload == payload
    queue.redrive(edit={"id": message.id, "payload": payload[::-1]})
    queue = desk.reopen().queue("mail")
    [message] = queue.claim(1)
    assert message.payload == payload[::-1]
    message.ack()
    assert desk.reopen().queue("mail").stats().bytes == 0


def test_a_delayed_message_comes_when_it_is_due(desk: Desk) -> None:
    hf = desk.open()
    hf.queue("mail").enqueue(b"a", delay="1m")
    hf = desk.reopen()
    assert hf.queue("mail").stats().delayed == 1
    assert payloads(hf) == []
    desk.clock.advance(59_999)
    assert payloads(desk.reopen()) == []
    desk.clock.advance(1)
    assert payloads(desk.reopen()) == [b"a"]


def test_a_message_that_came_due_meanwhile_is_ready(desk: Desk) -> None:
    hf = desk.open()
    hf.queue("mail").enqueue(b"a", delay="1m")
    desk.clock.step_to(desk.clock.now_ms() + 60_000)
    hf = desk.reopen()
    assert (hf.queue("mail").stats().ready, hf.queue("mail").stats().delayed) == (1, 0)
    assert payloads(hf) == [b"a"]


def test_a_ttl_that_ran_out_meanwhile_ends_the_message(desk: Desk) -> None:
    """In queues that nobody has touched since the opening, by a sweep."""
    hf = desk.open()
    for name in ("mail", "pay"):
        for number in range(3):
            hf.queue(name).enqueue(b"%d" % number, ttl="1m", group="g" if number else None)
    desk.clock.step_to(desk.clock.now_ms() + 60_000)
    hf = desk.reopen()
    sweep(hf)
    hf = desk.reopen()
    for name in ("mail", "pay"):
        assert (hf.queue(name).stats().failed, hf.queue(name).stats().ready) == (3, 0)
        assert [info.reason for info in hf.queue(name).list("failed")] == ["ttl"] * 3


def test_kept_successes_are_found_until_their_time(desk: Desk) -> None:
    hf = desk.open()
    queue = hf.queue("mail")
    queue.set_policy(keep_succeeded_ms=60_000)
    queue.enqueue(b"a")
    [message] = queue.claim(1)
    message.ack()
    assert desk.reopen().queue("mail").get(message.id).state == "succeeded"
    desk.clock.step_to(desk.clock.now_ms() + 60_000)
    hf = desk.reopen()
    sweep(hf)
    with pytest.raises(MessageNotFound):
        desk.reopen().queue("mail").get(message.id)


# --- Leases ----------------------------------------------------------------------------------------------------------


def test_a_lease_holds_on_and_its_receipt_counts(desk: Desk) -> None:
    queue = desk.open().queue("mail")
    queue.enqueue([b"a", b"b", b"c"])
    [first, second, third] = queue.claim(3, lease="1m")
    queue = desk.reopen().queue("mail")
    assert queue.stats().in_flight == 3
    assert queue.claim(1) == []
    assert queue.ack([first.receipt])[0].ok
    assert queue.extend([second.receipt], "2m")[0].ok
    desk.clock.step_to(desk.clock.now_ms() + 60_000)
    queue = desk.reopen().queue("mail")
    assert not queue.ack([third.receipt])[0].ok
    assert queue.ack([second.receipt])[0].ok
    [again] = queue.claim(1)
    assert (again.payload, again.attempt) == (b"c", 2)
    assert again.version > third.version
    assert queue.get(again.id).expiries == 1


def test_a_lease_runs_out_in_its_time(desk: Desk) -> None:
    hf = desk.open()
    hf.queue("mail").enqueue(b"a")
    hf.queue("mail").claim(1, lease="1m")
    hf = desk.reopen()
    desk.clock.advance(59_999)
    assert hf.queue("mail").stats().in_flight == 1
    desk.clock.advance(1)
    sweep(hf)
    assert (hf.queue("mail").stats().in_flight, hf.queue("mail").stats().ready) == (0, 1)


def test_an_acked_message_stays_gone_and_a_stale_receipt_stale(desk: Desk) -> None:
    queue = desk.open().queue("mail")
    queue.enqueue([b"a", b"b"])
    [first, second] = queue.claim(2)
    first.ack()
    second.release()
    queue = desk.reopen().queue("mail")
    assert [result.error for result in queue.ack([first.receipt, second.receipt])] == ["stale_lease"] * 2
    assert [message.payload for message in queue.claim(10)] == [b"b"]


def test_retries_go_on_counting(desk: Desk) -> None:
    queue = desk.open().queue("mail")
    queue.set_policy(max_retries=2, backoff_base_ms=0)
    [id] = queue.enqueue(b"a")
    for attempt in (1, 2, 3):
        [message] = queue.claim(1)
        assert message.attempt == attempt
        message.nack(f"failure {attempt}")
        queue = desk.reopen().queue("mail")
    info = queue.get(id)
    assert (info.state, info.reason, info.failures, info.last_error) == ("failed", "retries", 3, "failure 3")


# --- Groups ----------------------------------------------------------------------------------------------------------


def test_a_group_keeps_its_order_and_its_batch_in_flight(desk: Desk) -> None:
    queue = desk.open().queue("mail")
    queue.enqueue([b"1", b"2", b"3"], group="g")
    queue.enqueue(b"other", group="h")
    [first, second] = queue.claim(2)
    assert [first.payload, second.payload] == [b"1", b"2"]
    queue = desk.reopen().queue("mail")
    assert [message.payload for message in queue.claim(10)] == [b"other"]
    queue.ack([first.receipt])
    queue = desk.reopen().queue("mail")
    assert queue.claim(10) == []
    queue.release([second.receipt])
    assert [message.payload for message in desk.reopen().queue("mail").claim(10)] == [b"2", b"3"]


# --- Dead letters, state, ledger, keys -------------------------------------------------------------------------------


def test_dead_letters_are_kept_and_come_back_with_a_fresh_budget(desk: Desk) -> None:
    queue = desk.open().queue("mail")
    queue.enqueue(b"a")
    [message] = queue.claim(1)
    message.nack("broken", final=True)
    queue = desk.reopen().queue("mail")
    [info] = queue.list("failed")
    assert (info.reason, info.last_error, info.attempt) == ("final", "broken", 1)
    assert queue.redrive().changed == 1
    [again] = desk.reopen().queue("mail").claim(1)
    assert again.id == message.id
    assert again.attempt == 2


def test_a_state_document_is_kept_with_its_etag(desk: Desk) -> None:
    queue = desk.open().queue("mail")
    queue.enqueue(b"a")
    [message] = queue.claim(1, state=True)
    etag = message.save_state({"step": 1})
    message.progress(40, "half")
    message.release()
    queue = desk.reopen().queue("mail")
    progress = queue.get(message.id).progress
    assert progress is not None
    assert progress.percent == 40
    [again] = queue.claim(1, state=True)
    assert (again.state, again.etag) == ({"step": 1}, etag)
    again.nack("broken", final=True)
    desk.reopen().queue("mail").redrive()
    [again] = desk.reopen().queue("mail").claim(1, state=True)
    assert again.state == {"step": 1}


def test_a_ledger_is_read_again_and_stays_closed(desk: Desk) -> None:
    queue = desk.open().queue("mail")
    queue.enqueue([b"a", b"b", b"c"])
    claimed = [queue.claim(1, ledger=("spark", number), lease="10m")[0].id for number in (1, 2, 3)]
    queue = desk.reopen().queue("mail")
    assert [entry.number for entry in queue.ledger("spark")] == [1, 2, 3]
    assert [message.id for message in queue.claim(1, ledger=("spark", 2))] == [claimed[1]]
    assert all(result.ok for result in queue.ledger_ack("spark", 2))
    queue = desk.reopen().queue("mail")
    assert [entry.number for entry in queue.ledger("spark")] == [3]
    with pytest.raises(Exception, match="closed"):
        queue.claim(1, ledger=("spark", 2))


def test_an_idempotency_key_is_known_for_its_window_even_after_the_ack(desk: Desk) -> None:
    queue = desk.open().queue("mail")
    queue.set_policy(dedup_window_ms=60_000)
    [first] = queue.enqueue(b"a", key="k")
    [message] = queue.claim(1)
    message.ack()
    [again] = desk.reopen().queue("mail").enqueue(b"a", key="k")
    assert (again, again.duplicate) == (first, True)
    desk.clock.step_to(desk.clock.now_ms() + 60_000)
    hf = desk.reopen()
    sweep(hf)
    [fresh] = desk.reopen().queue("mail").enqueue(b"a", key="k")
    assert not fresh.duplicate
    assert fresh != first


# --- Queues ----------------------------------------------------------------------------------------------------------


def test_policies_pauses_and_tenants_are_kept(desk: Desk) -> None:
    hf = desk.open()
    hf.queue("mail", tenant="acme").set_policy(lease_ms=1_234, max_retries=7)
    hf.queue("mail", tenant="acme").pause()
    hf.tenant("acme").set(weight=5)
    hf.queue("mail", tenant="acme").enqueue(b"a")
    hf = desk.reopen()
    queue = hf.queue("mail", tenant="acme")
    assert (queue.policy().lease_ms, queue.policy().max_retries) == (1_234, 7)
    assert hf.tenant("acme").get().weight == 5
    assert queue.stats().paused
    assert queue.claim(1) == []
    queue.resume()
    assert desk.reopen().queue("mail", tenant="acme").claim(1)


def test_counters_are_as_they_were(desk: Desk) -> None:
    queue = desk.open().queue("mail")
    queue.enqueue([b"%d" % number for number in range(10)])
    queue.enqueue(b"later", delay="1h", headers={"a": "b"})
    messages = queue.claim(4)
    messages[0].ack()
    messages[1].nack("broken", final=True)
    messages[2].nack("failed", delay="1h")
    before = queue.stats()
    assert (before.ready, before.delayed, before.in_flight, before.failed) == (6, 2, 1, 1)
    hf = desk.reopen()
    assert hf.queue("mail").stats() == before
    assert hf.tenant("default").stats().bytes == before.bytes


def test_a_queue_that_is_being_deleted_goes_on_going(desk: Desk) -> None:
    hf = desk.open()
    queue = hf.queue("mail")
    queue.enqueue([b"a", b"b"])
    [held] = queue.claim(1, lease="10m")
    queue.delete(force_after="1m")
    hf = desk.reopen()
    queue = hf.queue("mail")
    with pytest.raises(Draining):
        queue.enqueue(b"c")
    assert queue.stats().draining
    desk.clock.advance(60_000)
    sweep(hf)
    hf = desk.reopen()
    with pytest.raises(QueueNotFound):
        hf.queue("mail").stats()
    assert not hf.queue("mail").ack([held.receipt])[0].ok


def test_the_number_of_a_deleted_queue_is_never_given_again(desk: Desk) -> None:
    def number_of(hf: Holdfast, name: str) -> int:
        [row] = [row for row in hf._driver.run(core_of(hf).store.list_queues("default")) if row.ref.queue == name]
        return row.queue_id

    hf = desk.open()
    numbers = []
    for _ in range(3):
        hf.queue("mail").enqueue(b"a", key="k")
        numbers.append(number_of(hf, "mail"))
        hf.queue("mail").delete(force_after=0)
        sweep(hf)
        hf = desk.reopen()
        assert not hf.queues()
        assert hf.queue("mail").claim(1) == []
    assert numbers == sorted(set(numbers))


def test_a_deleted_queue_made_anew_knows_nothing_of_the_old_one(desk: Desk) -> None:
    hf = desk.open()
    queue = hf.queue("mail")
    queue.enqueue(b"a", key="k", group="g")
    queue.pause()
    queue.delete(force_after=0)
    sweep(hf)
    queue = desk.reopen().queue("mail")
    [id] = queue.enqueue(b"b", key="k", group="g")
    assert not id.duplicate
    assert [message.payload for message in desk.reopen().queue("mail").claim(10)] == [b"b"]


# --- The journal -----------------------------------------------------------------------------------------------------


def test_the_journal_goes_on_behind_its_last_position(desk: Desk) -> None:
    hf = desk.open()
    hf.queue("mail").enqueue([b"a", b"b"])
    first = hf.journal()
    hf = desk.reopen()
    assert list(hf.journal()) == list(first)
    assert not hf.journal(first.next)
    hf.queue("mail").claim(1)
    hf.queue("mail").enqueue(b"c")
    later = desk.reopen().journal(first.next)
    assert [event.event for event in later] == ["claimed", "enqueued"]
    assert [event.seq for event in (*first, *later)] == [1, 2, 3, 4]


def test_a_journal_that_was_trimmed_to_nothing_goes_on_behind_its_last_position(desk: Desk) -> None:
    """A reader that kept its position must not miss what comes."""
    hf = desk.open()
    hf.queue("mail").enqueue([b"a", b"b", b"c"])
    [message, *_] = hf.queue("mail").claim(3)
    message.ack()
    position = hf.journal().next
    desk.clock.step_to(desk.clock.now_ms() + 2 * WEEK_MS)
    hf.queue("mail").purge()
    sweep(hf)
    position = hf.journal(position).next
    desk.clock.step_to(desk.clock.now_ms() + 2 * WEEK_MS)
    sweep(hf)
    assert not hf.journal()
    hf = desk.reopen()
    [id] = hf.queue("mail").enqueue(b"d")
    assert [(event.event, event.snowflake) for event in hf.journal(position)] == [("enqueued", id.snowflake)]


# --- A crash at every write ------------------------------------------------------------------------------------------


def test_whatever_write_is_the_last_one_the_store_is_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill leaves what was written up to some write: after each of them, every invariant holds."""
    copies: list[Path] = []
    write = Database.write
    is_copying = True

    def copying_write(database: Database, batch: Any) -> None:
        write(database, batch)
        if is_copying:
            copies.append(copy_store(database.path, tmp_path / f"copy {len(copies)}"))

    monkeypatch.setattr(Database, "write", copying_write)
    clock = ManualClock()
    for part in (_fill, _use, _let_time_pass):
        with open_store(tmp_path / "store", clock, settings={"max_payload": 4 << 20}) as hf:
            part(hf, clock)
    is_copying = False
    assert len(copies) > 60
    for copy in copies:
        verify_store(copy, copy.name)


def _fill(hf: Holdfast, clock: ManualClock) -> None:
    for name in ("mail", "pay"):
        queue = hf.queue(name, tenant="acme")
        queue.enqueue([b"a", b"b"], priority=3)
        queue.enqueue(b"c", ttl="1m")
        queue.enqueue(b"d", ttl="1m", group="g")
        queue.enqueue([b"e", b"f"], group="g")
        queue.enqueue(b"g", delay="30s", key="k")
        queue.enqueue(b"h", group="h", delay="30s", ttl="2m")
        queue.enqueue(bytes(LARGE), ttl="1m")
        queue.claim(1, lease="30s")
    # Nothing but time will touch this one.
    idle = hf.queue("idle", tenant="acme")
    idle.enqueue([b"a", b"b"], ttl="1m")
    idle.enqueue([b"c", b"d"], ttl="1m", group="g")
    idle.enqueue([b"e"], ttl="1m", delay="30s")


def _use(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("mail", tenant="acme")
    queue.set_policy(keep_succeeded_ms=10_000, dedup_window_ms=20_000)
    queue.enqueue(b"i", key="l")
    messages = queue.claim(3, state=True, lease="40s")
    messages[0].save_state({"step": 1})
    messages[0].nack("failed", delay="1s")
    messages[1].ack()
    messages[2].nack("broken", final=True)
    queue.claim(2, ledger=("spark", 1))
    queue.ledger_ack("spark", 1)
    queue.redrive()
    queue.reprioritise(9)
    queue.move("pay", filter={"priority": 9})
    queue.pause()
    hf.queue("gone", tenant="acme").enqueue([b"x", b"y"], key=None, group="g")
    hf.queue("gone", tenant="acme").delete(force_after=0)
    sweep(hf)


def _let_time_pass(hf: Holdfast, clock: ManualClock) -> None:
    """First of all in queues that were not touched since the opening."""
    for step_ms in (30_000, 30_000, 60_000, DAY_MS, 2 * WEEK_MS):
        clock.step_to(clock.now_ms() + step_ms)
        sweep(hf)
    for message in hf.queue("pay", tenant="acme").claim(100):
        message.ack()


def test_a_store_closed_in_order_needs_no_log(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as hf:
        hf.queue("mail").enqueue([b"%d" % number for number in range(100)])
        [message] = hf.queue("mail").claim()
        message.ack()
    for log in (tmp_path / "store" / "db").glob("*.log"):
        log.unlink()
    with open_store(tmp_path / "store") as hf:
        assert hf.queue("mail").stats().ready == 99
        assert len(hf.journal()) == 102
    verify_store(tmp_path / "store", "without its log")
