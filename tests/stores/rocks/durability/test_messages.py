"""The properties of a message that survive a closing and a crash: numbers, lease, group, state and key."""

import pytest

from holdfast.client.blocking import Holdfast
from holdfast.model.errors import MessageNotFound
from tests.crash.rocks import sweep
from tests.stores.rocks.durability.restartable_store import DAY_MS, LARGE, RestartableStore


def payloads(hf: Holdfast, limit: int = 100) -> list[bytes]:
    return [message.payload for message in hf.queue("mail").claim(limit)]


# --- Versions and ids ------------------------------------------------------------------------------------------------


def test_after_a_closing_versions_continue_by_one(closed: RestartableStore) -> None:
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


@pytest.mark.spec("2.5")
def test_after_a_kill_versions_of_older_messages_jump_and_new_ones_begin_at_1(killed: RestartableStore) -> None:
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


@pytest.mark.spec("2.5")
def test_a_version_never_goes_back_when_kills_and_closings_take_turns(killed: RestartableStore) -> None:
    queue = killed.open().queue("mail")
    queue.enqueue(b"a")
    versions = []
    for number in range(6):
        killed._ends = "killed" if number % 2 else "closed"
        [message] = killed.reopen().queue("mail").claim(1)
        versions.append(message.version)
        message.release()
    assert versions == sorted(set(versions))


@pytest.mark.spec("1.4")
def test_ids_never_repeat_and_always_grow_even_if_the_clock_was_set_back(restartable: RestartableStore) -> None:
    hf = restartable.open()
    seen = [id.snowflake for id in hf.queue("mail").enqueue([b"a"] * 10)]
    for back_ms in (1, 60_000, DAY_MS):
        restartable.clock.step_to(restartable.clock.now_ms() - back_ms)
        seen += [id.snowflake for id in restartable.reopen().queue("mail").enqueue([b"a"] * 10)]
    assert seen == sorted(set(seen))


def test_an_id_is_not_given_again_after_its_message_is_gone(restartable: RestartableStore) -> None:
    queue = restartable.open().queue("mail")
    ids = queue.enqueue([b"a", b"b"])
    queue.purge()
    assert restartable.reopen().queue("mail").enqueue(b"c")[0].snowflake > ids[-1].snowflake


@pytest.mark.spec("1.4")
def test_a_store_keeps_its_node(restartable: RestartableStore) -> None:
    ids = [id.snowflake for id in restartable.open().queue("mail").enqueue(b"a")]
    ids += [id.snowflake for id in restartable.reopen().queue("mail").enqueue(b"b")]
    assert len({id >> 12 & 0x3FF for id in ids}) == 1


# --- Messages --------------------------------------------------------------------------------------------------------


def test_messages_keep_everything_they_were_sent_with_and_their_order(restartable: RestartableStore) -> None:
    queue = restartable.open().queue("mail")
    queue.enqueue({"n": 1}, priority=7, headers={"colour": "red"}, correlation_id="ours", max_retries=9)
    queue.enqueue(b"first", priority=1)
    queue.enqueue(b"later")
    before = [queue.get(info.id, payload=True) for info in queue.list()]
    queue = restartable.reopen().queue("mail")
    assert [queue.get(info.id, payload=True) for info in queue.list()] == before
    [first, second, third] = queue.claim(3)
    assert (first.payload, second.json(), third.payload) == (b"first", {"n": 1}, b"later")
    assert (second.headers, second.correlation_id) == ({"colour": "red"}, "ours")


def test_a_payload_in_chunks_comes_back_whole(restartable: RestartableStore) -> None:
    payload = bytes(range(256)) * (LARGE // 256 + 1)
    queue = restartable.open().queue("mail")
    queue.enqueue(payload)
    queue = restartable.reopen().queue("mail")
    [message] = queue.claim(1)
    assert message.payload == payload
    message.nack("failed", final=True)
    queue = restartable.reopen().queue("mail")
    assert queue.get(message.id, payload=True).payload == payload
    queue.redrive(edit={"id": message.id, "payload": payload[::-1]})
    queue = restartable.reopen().queue("mail")
    [message] = queue.claim(1)
    assert message.payload == payload[::-1]
    message.ack()
    assert restartable.reopen().queue("mail").stats().bytes == 0


def test_a_delayed_message_comes_when_it_is_due(restartable: RestartableStore) -> None:
    hf = restartable.open()
    hf.queue("mail").enqueue(b"a", delay="1m")
    hf = restartable.reopen()
    assert hf.queue("mail").stats().delayed == 1
    assert payloads(hf) == []
    restartable.clock.advance(59_999)
    assert payloads(restartable.reopen()) == []
    restartable.clock.advance(1)
    assert payloads(restartable.reopen()) == [b"a"]


def test_a_message_that_came_due_meanwhile_is_ready(restartable: RestartableStore) -> None:
    hf = restartable.open()
    hf.queue("mail").enqueue(b"a", delay="1m")
    restartable.clock.step_to(restartable.clock.now_ms() + 60_000)
    hf = restartable.reopen()
    assert (hf.queue("mail").stats().ready, hf.queue("mail").stats().delayed) == (1, 0)
    assert payloads(hf) == [b"a"]


def test_a_ttl_that_ran_out_meanwhile_ends_the_message(restartable: RestartableStore) -> None:
    """A sweep does so in queues that were not used since the opening."""
    hf = restartable.open()
    for name in ("mail", "pay"):
        for number in range(3):
            hf.queue(name).enqueue(b"%d" % number, ttl="1m", group="g" if number else None)
    restartable.clock.step_to(restartable.clock.now_ms() + 60_000)
    hf = restartable.reopen()
    sweep(hf)
    hf = restartable.reopen()
    for name in ("mail", "pay"):
        assert (hf.queue(name).stats().failed, hf.queue(name).stats().ready) == (3, 0)
        assert [info.reason for info in hf.queue(name).list("failed")] == ["ttl"] * 3


@pytest.mark.spec("2.10")
def test_kept_successes_are_found_until_their_time(restartable: RestartableStore) -> None:
    hf = restartable.open()
    queue = hf.queue("mail")
    queue.set_policy(keep_succeeded_ms=60_000)
    queue.enqueue(b"a")
    [message] = queue.claim(1)
    message.ack()
    assert restartable.reopen().queue("mail").get(message.id).state == "succeeded"
    restartable.clock.step_to(restartable.clock.now_ms() + 60_000)
    hf = restartable.reopen()
    sweep(hf)
    with pytest.raises(MessageNotFound):
        restartable.reopen().queue("mail").get(message.id)


# --- Leases ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("4.6")
def test_a_lease_holds_on_and_its_receipt_counts(restartable: RestartableStore) -> None:
    queue = restartable.open().queue("mail")
    queue.enqueue([b"a", b"b", b"c"])
    [first, second, third] = queue.claim(3, lease="1m")
    queue = restartable.reopen().queue("mail")
    assert queue.stats().in_flight == 3
    assert queue.claim(1) == []
    assert queue.ack([first.receipt])[0].ok
    assert queue.extend([second.receipt], "2m")[0].ok
    restartable.clock.step_to(restartable.clock.now_ms() + 60_000)
    queue = restartable.reopen().queue("mail")
    assert not queue.ack([third.receipt])[0].ok
    assert queue.ack([second.receipt])[0].ok
    [again] = queue.claim(1)
    assert (again.payload, again.attempt) == (b"c", 2)
    assert again.version > third.version
    assert queue.get(again.id).expiries == 1


@pytest.mark.spec("4.6")
def test_a_lease_runs_out_in_its_time(restartable: RestartableStore) -> None:
    hf = restartable.open()
    hf.queue("mail").enqueue(b"a")
    hf.queue("mail").claim(1, lease="1m")
    hf = restartable.reopen()
    restartable.clock.advance(59_999)
    assert hf.queue("mail").stats().in_flight == 1
    restartable.clock.advance(1)
    sweep(hf)
    assert (hf.queue("mail").stats().in_flight, hf.queue("mail").stats().ready) == (0, 1)


def test_an_acked_message_stays_gone_and_a_stale_receipt_stale(restartable: RestartableStore) -> None:
    queue = restartable.open().queue("mail")
    queue.enqueue([b"a", b"b"])
    [first, second] = queue.claim(2)
    first.ack()
    second.release()
    queue = restartable.reopen().queue("mail")
    assert [result.error for result in queue.ack([first.receipt, second.receipt])] == ["stale_lease"] * 2
    assert [message.payload for message in queue.claim(10)] == [b"b"]


def test_retries_continue_counting(restartable: RestartableStore) -> None:
    queue = restartable.open().queue("mail")
    queue.set_policy(max_retries=2, backoff_base_ms=0)
    [id] = queue.enqueue(b"a")
    for attempt in (1, 2, 3):
        [message] = queue.claim(1)
        assert message.attempt == attempt
        message.nack(f"failure {attempt}")
        queue = restartable.reopen().queue("mail")
    info = queue.get(id)
    assert (info.state, info.reason, info.failures, info.last_error) == ("failed", "retries", 3, "failure 3")


# --- Groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("2.13")
def test_a_group_keeps_its_order_and_its_batch_in_flight(restartable: RestartableStore) -> None:
    queue = restartable.open().queue("mail")
    queue.enqueue([b"1", b"2", b"3"], group="g")
    queue.enqueue(b"other", group="h")
    [first, second] = queue.claim(2)
    assert [first.payload, second.payload] == [b"1", b"2"]
    queue = restartable.reopen().queue("mail")
    assert [message.payload for message in queue.claim(10)] == [b"other"]
    queue.ack([first.receipt])
    queue = restartable.reopen().queue("mail")
    assert queue.claim(10) == []
    queue.release([second.receipt])
    assert [message.payload for message in restartable.reopen().queue("mail").claim(10)] == [b"2", b"3"]


# --- Dead letters, state, ledger, keys -------------------------------------------------------------------------------


@pytest.mark.spec("2.11")
def test_dead_letters_are_kept_and_come_back_with_a_fresh_budget(restartable: RestartableStore) -> None:
    queue = restartable.open().queue("mail")
    queue.enqueue(b"a")
    [message] = queue.claim(1)
    message.nack("broken", final=True)
    queue = restartable.reopen().queue("mail")
    [info] = queue.list("failed")
    assert (info.reason, info.last_error, info.attempt) == ("final", "broken", 1)
    assert queue.redrive().changed == 1
    [again] = restartable.reopen().queue("mail").claim(1)
    assert again.id == message.id
    assert again.attempt == 2


@pytest.mark.spec("3.6")
def test_a_state_document_is_kept_with_its_etag(restartable: RestartableStore) -> None:
    queue = restartable.open().queue("mail")
    queue.enqueue(b"a")
    [message] = queue.claim(1, state=True)
    etag = message.save_state({"step": 1})
    message.progress(40, "half")
    message.release()
    queue = restartable.reopen().queue("mail")
    progress = queue.get(message.id).progress
    assert progress is not None
    assert progress.percent == 40
    [again] = queue.claim(1, state=True)
    assert (again.state, again.etag) == ({"step": 1}, etag)
    again.nack("broken", final=True)
    restartable.reopen().queue("mail").redrive()
    [again] = restartable.reopen().queue("mail").claim(1, state=True)
    assert again.state == {"step": 1}


@pytest.mark.spec("3.12")
def test_a_ledger_is_read_again_and_stays_closed(restartable: RestartableStore) -> None:
    queue = restartable.open().queue("mail")
    queue.enqueue([b"a", b"b", b"c"])
    claimed = [queue.claim(1, ledger=("spark", number), lease="10m")[0].id for number in (1, 2, 3)]
    queue = restartable.reopen().queue("mail")
    assert [entry.number for entry in queue.ledger("spark")] == [1, 2, 3]
    assert [message.id for message in queue.claim(1, ledger=("spark", 2))] == [claimed[1]]
    assert all(result.ok for result in queue.ledger_ack("spark", 2))
    queue = restartable.reopen().queue("mail")
    assert [entry.number for entry in queue.ledger("spark")] == [3]
    with pytest.raises(Exception, match="closed"):
        queue.claim(1, ledger=("spark", 2))


@pytest.mark.spec("3.5")
def test_an_idempotency_key_is_known_for_its_window_even_after_the_ack(restartable: RestartableStore) -> None:
    queue = restartable.open().queue("mail")
    queue.set_policy(dedup_window_ms=60_000)
    [first] = queue.enqueue(b"a", key="k")
    [message] = queue.claim(1)
    message.ack()
    [again] = restartable.reopen().queue("mail").enqueue(b"a", key="k")
    assert (again, again.duplicate) == (first, True)
    restartable.clock.step_to(restartable.clock.now_ms() + 60_000)
    hf = restartable.reopen()
    sweep(hf)
    [fresh] = restartable.reopen().queue("mail").enqueue(b"a", key="k")
    assert not fresh.duplicate
    assert fresh != first


@pytest.mark.parametrize("verdict", ["ack", "extend"])
def test_a_receipt_that_stands_twice_in_one_call_counts_once_after_a_reopening(
    restartable: RestartableStore, verdict: str
) -> None:
    """The message is only on disk then. It must not be loaded twice, as two messages."""
    queue = restartable.open().queue("mail")
    queue.set_policy(keep_succeeded_ms=60_000)
    queue.enqueue(b"a")
    [held] = queue.claim(1, lease="10m")
    queue = restartable.reopen().queue("mail")
    if verdict == "ack":
        results = queue.ack([held.receipt, held.receipt])
        assert [result.ok for result in results] == [True, False]
        assert queue.get(str(held.id)).state == "succeeded"
    else:
        results = queue.extend([held.receipt, held.receipt], lease="20m")
        assert [result.ok for result in results] == [True, True]
        assert queue.get(str(held.id)).lease_expires_at == results[-1].lease_expires_at
