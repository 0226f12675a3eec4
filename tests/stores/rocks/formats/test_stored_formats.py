"""Stores of every earlier format, kept as fixtures, open with all of their messages and get the current format."""

import json
import tarfile
from pathlib import Path

import pytest

import holdfast
from holdfast.client.blocking import Holdfast
from holdfast.clock import sleep
from holdfast.stores.rocks.recovery.marker import FORMAT, read_marker
from holdfast.stores.rocks.verify.store_check import verify
from holdfast.testing import ManualClock
from holdfast.testing.clock import START_MS
from tests.stores.rocks.formats.filled import LARGE

HERE = Path(__file__).parent
# Of a store that has messages of the legacy layout as well (`half_moved.py`).
HALF_MOVED = 7
FORMATS = sorted(
    {int(each.name.removeprefix("format_").removesuffix(".tar.xz")) for each in HERE.glob("*.tar.xz")} - {HALF_MOVED}
)
# The formats of stores with shards, which become format 6; the others become 4.
SHARDED = (3, 5, 6)


def unpack(number: int, path: Path) -> Path:
    with tarfile.open(HERE / f"format_{number}.tar.xz") as packed:
        packed.extractall(path, filter="data")
    return path


def opened(store: Path, clock: ManualClock) -> Holdfast:
    return holdfast.open(store, clock=clock, durability="os", max_payload=4 << 20)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS + 1)


def test_each_format_has_a_fixture() -> None:
    assert list(range(1, FORMAT + 1)) == [*FORMATS, HALF_MOVED], "keep the fixtures, and add one of the previous format"
    for number in (*FORMATS, HALF_MOVED):
        with tarfile.open(HERE / f"format_{number}.tar.xz") as packed:
            marker = packed.extractfile("HOLDFAST")
            assert marker is not None
            assert json.loads(marker.read())["format"] == number


@pytest.mark.parametrize("number", FORMATS)
def test_a_killed_store_of_each_format_has_all_of_its_messages(number: int, tmp_path: Path, clock: ManualClock) -> None:
    store = unpack(number, tmp_path / "store")
    with opened(store, clock) as hf:
        mail = hf.queue("mail", tenant="acme")
        assert (mail.policy().max_retries, mail.policy().keep_succeeded_ms) == (1, 86_400_000)
        stats = mail.stats()
        assert (stats.ready, stats.delayed, stats.in_flight, stats.failed) == (8, 1, 1, 0)
        [in_flight] = mail.list("in_flight", payload=True)
        assert (in_flight.payload, in_flight.owner) == (b'"first"', "worker")
        [delayed] = mail.list("delayed", payload=True)
        assert (delayed.payload, delayed.visible_at) == (b'"delayed"', START_MS + 3_600_000)
        by_payload = {message.payload: message for message in mail.claim(limit=20)}
        assert list(by_payload) == [
            *(
                b'"plain"',
                b"\x00bytes",
                b'"dying"',
                b'"keyed"',
                b'"grouped 1"',
                b'"grouped 2"',
                LARGE,
                b'"with headers"',
            )
        ]
        rich = by_payload[b'"with headers"']
        assert (rich.headers, rich.correlation_id) == ({"a": "b"}, "c-1")
        [again] = mail.enqueue("keyed", key="k")
        assert (again.duplicate, str(again)) == (True, str(by_payload[b'"keyed"'].id))
        for message in by_payload.values():
            message.ack()

        fed = hf.queue("fed", tenant="acme")
        assert [entry.number for entry in fed.ledger("consumer")] == [0]
        assert [message.json() for message in fed.claim(ledger=("consumer", 0))] == ["fed"]
        [dead] = hf.queue("dead", tenant="acme").list("failed")
        assert dead.last_error == "broken"
        done = hf.queue("done", tenant="acme")
        assert [info.state for info in done.list()] == ["succeeded"]
        assert [schedule.name for schedule in done.schedules()] == ["nightly"]
        assert hf.tenant("acme").get().quotas.max_messages == 100
        many = hf.queue("many", tenant="globex").claim(limit=100)
        assert [message.payload for message in many] == [b"%d" % each for each in range(50)]
        clock.advance(3_000_000)
        [held] = hf.queue("states", tenant="acme").claim(state=True)
        assert (held.json(), held.state, held.attempt) == ("held with state", {"step": 1}, 2)
        events = hf.journal(limit=1_000)
        assert sum(event.event == "enqueued" for event in events) == 10 + 4 + 50 + 1

    assert read_marker(store).format == (6 if number in SHARDED else 4)
    report = verify(store, None)
    assert report.violations == []
    assert report.messages > 0


@pytest.mark.parametrize("number", FORMATS)
def test_a_store_of_each_format_opens_again(number: int, tmp_path: Path, clock: ManualClock) -> None:
    store = unpack(number, tmp_path / "store")
    for _ in range(2):
        with opened(store, clock) as hf:
            hf.queue("mail", tenant="acme").enqueue("later")
    with opened(store, clock) as hf:
        assert hf.queue("mail", tenant="acme").stats().ready == 10
    assert verify(store, None).violations == []


def test_a_killed_store_that_was_half_moved_has_all_of_its_messages(tmp_path: Path, clock: ManualClock) -> None:
    store = unpack(HALF_MOVED, tmp_path / "store")
    with opened(store, clock) as hf:
        stats = hf.queue().stats()
        assert (stats.ready, stats.in_flight, isinstance(stats.legacy_left, int)) == (297, 3, True)
        assert sorted(each.state for each in hf.queue().list(limit=400)) == ["in_flight"] * 3 + ["ready"] * 297
        for number in range(297):
            [message] = hf.queue().claim()
            assert message.payload == b"old %d" % (number + 3)
            message.ack()
        while (store / "legacy").exists():
            sleep(0.01)
    assert read_marker(store).format == 4
    assert verify(store, None).violations == []
