"""Payloads in pieces: they count only once a message has them, and pieces without a message are deleted."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.client.blocking import Holdfast
from holdfast.model.answers import Delivery, Enqueued
from holdfast.model.errors import (
    Draining,
    MessageNotFound,
    OverQuota,
    PayloadTooLarge,
    QueueNotFound,
    StoreUnavailable,
)
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.service.uploads import PayloadUpload
from holdfast.stores.contract import PayloadReader
from holdfast.stores.payloads.pieces import PIECE_BYTES
from holdfast.stores.rocks import RocksStore, keys
from holdfast.stores.rocks.verify.store_check import verify
from holdfast.testing import ManualClock
from holdfast.wire.requests import BrowseRequest
from tests.crash.rocks import copy_store, core_of, open_store, sweep, verify_store

MAX_PAYLOAD = 4 << 20
MAIL = QueueRef("default", "mail")
# Neither a multiple of a piece nor of the parts below.
PAYLOAD = Random(0).randbytes((2 << 20) + 12_345)
PART = 100_000


class Store:
    """A store whose keys the test can inspect."""

    def __init__(self, path: Path, durability: str, **options: Any) -> None:
        self.path = path
        self.clock = ManualClock()
        self.durability = durability
        self.hf = self._open(path, **options)

    def _open(self, path: Path, **options: Any) -> Holdfast:
        settings = {"max_payload": MAX_PAYLOAD, **options.pop("settings", {})}
        return open_store(path, self.clock, durability=self.durability, settings=settings, **options)

    def run(self, work: Any) -> Any:
        return self.hf._driver.run(work)

    def reopen(self, *, is_killed: bool) -> None:
        if is_killed:
            self.path = copy_store(self.path, self.path.with_name("killed"))
        self.hf.close()
        verify_store(self.path, "before it is opened again")
        self.hf = self._open(self.path)

    # --- In ----------------------------------------------------------------------------------------------------

    def upload(self, ref: QueueRef = MAIL, **options: Any) -> PayloadUpload:
        upload: PayloadUpload = self.run(core_of(self.hf).messages.upload(ref, Draft(payload=b"", **options)))
        return upload

    def write(self, upload: PayloadUpload, payload: bytes = PAYLOAD) -> PayloadUpload:
        for start in range(0, len(payload), PART):
            self.run(upload.write(payload[start : start + PART]))
        return upload

    def enqueue(self, payload: bytes = PAYLOAD, ref: QueueRef = MAIL, **options: Any) -> Enqueued:
        upload = self.upload(ref, **options)
        try:
            return self.finish(self.write(upload, payload), ref)
        finally:
            upload.close()

    def finish(self, upload: PayloadUpload, ref: QueueRef = MAIL) -> Enqueued:
        [enqueued] = self.run(core_of(self.hf).messages.enqueue(ref, [self.run(upload.finish())]))
        assert isinstance(enqueued, Enqueued)
        return enqueued

    # --- Out ---------------------------------------------------------------------------------------------------

    def claim(self, ref: QueueRef = MAIL) -> Delivery:
        [delivery] = self.run(core_of(self.hf).messages.claim(ref, ClaimRequest(streams=True), 0))
        assert isinstance(delivery, Delivery)
        return delivery

    def reader(self, delivery: Delivery, ref: QueueRef = MAIL) -> PayloadReader:
        reader: PayloadReader = self.run(core_of(self.hf).messages.read_payload(ref, delivery))
        return reader

    def next(self, reader: PayloadReader) -> bytes:
        part: bytes = self.run(reader.__anext__())
        return part

    def read(self, reader: PayloadReader, parts: list[bytes] | None = None) -> bytes:
        """Read a payload to its end. If that fails, `parts` has the parts read before."""
        parts = [] if parts is None else parts
        while True:
            try:
                parts.append(self.next(reader))
            except StopAsyncIteration:
                return b"".join(parts)

    # --- On disk -----------------------------------------------------------------------------------------------

    @property
    def rocks(self) -> RocksStore:
        store = core_of(self.hf).store
        assert isinstance(store, RocksStore)
        return store

    def kept(self) -> list[bytes]:
        """Return the keys of pieces and of stages."""
        engine = self.rocks._engine
        engine.write()
        spaces = (keys.PIECES, keys.STAGES)
        return [key for space in spaces for key in engine.database.scan(keys.INDEXES, space, keys.after(space))]


@pytest.fixture(params=["os", "fsync"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    store = Store(tmp_path / "store", request.param)
    yield store
    store.hf.close()
    verify_store(store.path, "at the end")


# --- In and out ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_payload_that_came_in_parts_outlives_its_process_and_goes_out_in_parts(store: Store, is_killed: bool) -> None:
    enqueued = store.enqueue(headers={"kind": "large"})
    store.reopen(is_killed=is_killed)
    delivery = store.claim()
    assert (delivery.snowflake, delivery.payload, delivery.bytes) == (enqueued.snowflake, b"", len(PAYLOAD))
    assert store.read(store.reader(delivery)) == PAYLOAD
    store.hf.queue("mail").ack([str(delivery.receipt)])
    assert store.kept() == []
    assert store.hf.queue("mail").stats().bytes == 0


def test_a_claim_that_does_not_stream_gets_the_payload_whole(store: Store) -> None:
    store.enqueue()
    [message] = store.hf.queue("mail").claim(1)
    assert message.payload == PAYLOAD
    message.nack("no", final=True)
    assert store.hf.queue("mail").get(message.id, payload=True).payload == PAYLOAD


def test_a_payload_that_came_whole_goes_out_in_parts(store: Store) -> None:
    store.hf.queue("mail").enqueue(PAYLOAD)
    assert store.read(store.reader(store.claim())) == PAYLOAD


def test_a_small_payload_is_kept_with_its_message(store: Store) -> None:
    store.enqueue(b"x" * (1 << 20))
    assert store.kept() == []
    delivery = store.claim()
    assert (len(delivery.payload), delivery.pieces) == (1 << 20, None)


def test_the_order_of_messages_is_that_of_their_enqueues_not_of_the_first_bytes(store: Store) -> None:
    upload = store.write(store.upload(group="one"))
    [before] = store.hf.queue("mail").enqueue(b"before", group="one")
    after = store.finish(upload)
    upload.close()
    assert after.snowflake > before.snowflake
    first, second = store.claim(), store.hf.queue("mail").stats()
    assert (first.payload, second.ready) == (b"before", 1)


def test_a_message_moved_to_another_queue_takes_its_payload_along_where_it_lies(store: Store) -> None:
    store.enqueue()
    before = store.kept()
    store.hf.queue("other").enqueue(b"makes place")
    store.hf.queue("mail").move("other")
    assert store.kept() == before
    store.hf.queue("mail").delete(force_after=0)
    sweep(store.hf)
    other = QueueRef("default", "other")
    deliveries = [store.claim(other), store.claim(other)]
    [moved] = [each for each in deliveries if each.pieces is not None]
    assert store.read(store.reader(moved, other)) == PAYLOAD


def test_deleting_a_queue_deletes_its_payloads(store: Store) -> None:
    store.enqueue()
    store.hf.queue("mail").delete(force_after=0)
    sweep(store.hf)
    assert store.kept() == []


def test_a_page_with_payloads_ends_by_its_bytes_also_within_a_step(store: Store) -> None:
    store.hf.close()
    store.hf = store._open(store.path, settings={"max_payload": 32 << 20})
    for size in (9 << 20, 9 << 20, 9 << 20):
        store.enqueue(bytes(size))
    inspection = core_of(store.hf).inspection
    cursor, pages = None, []
    while True:
        page = store.run(inspection.browse(MAIL, BrowseRequest(cursor=cursor, limit=10, payload=True)))
        pages.append([len(each.payload) for each in page])
        cursor = page.cursor
        if cursor is None:
            break
    assert pages == [[9 << 20, 9 << 20], [9 << 20]]


# --- What never becomes a message ------------------------------------------------------------------------------------


def test_an_upload_counts_for_nothing_until_it_is_enqueued(store: Store) -> None:
    upload = store.write(store.upload())
    assert store.kept()
    assert store.hf.queues() == []
    upload.close()


def test_an_abandoned_upload_leaves_no_key(store: Store) -> None:
    upload = store.write(store.upload())
    assert len(store.kept()) == len(PAYLOAD) // PIECE_BYTES + 1
    upload.close()
    upload.close()
    sweep(store.hf)
    assert store.kept() == []


def test_an_abandoned_upload_wakes_the_sweeper(store: Store) -> None:
    sweep(store.hf)
    store.write(store.upload()).close()
    store.clock.advance(1_000)
    assert store.kept() == []


def test_a_sweep_deletes_a_bounded_number_of_pieces_and_the_next_continues(store: Store) -> None:
    sweep(store.hf)
    store.write(store.upload()).close()
    left = [len(store.kept())]
    for _ in range(20):
        store.run(store.rocks.sweep(10, store.clock.now_ms()))
        left.append(len(store.kept()))
    assert all(before - after <= 10 for before, after in pairwise(left))
    assert left[-1] == 0


@pytest.mark.parametrize("is_half_deleted", [False, True])
def test_remains_of_a_killed_process_are_distinguished_from_damage_and_deleted_after_the_next_start(
    store: Store, is_half_deleted: bool
) -> None:
    upload = store.write(store.upload())
    if is_half_deleted:
        upload.close()
        store.run(store.rocks.sweep(5, store.clock.now_ms()))
    killed = copy_store(store.path, store.path.with_name("killed"))
    upload.close()
    report = verify(killed)
    assert (report.is_clean, report.messages, report.unfinished) == (True, 0, 1)
    assert 0 < report.unfinished_bytes <= len(PAYLOAD)
    with open_store(killed, store.clock) as hf:
        sweep(hf)
        assert hf.queues() == []
    report = verify(killed)
    assert (report.is_clean, report.unfinished, report.unfinished_bytes) == (True, 0, 0)


def test_a_duplicate_is_answered_with_the_first_and_its_payload_dropped(store: Store) -> None:
    first = store.enqueue(key="order-7")
    before = store.kept()
    again = store.enqueue(key="order-7")
    assert (again.snowflake, again.duplicate) == (first.snowflake, True)
    sweep(store.hf)
    assert store.kept() == before


def test_an_upload_that_is_closed_after_its_enqueue_keeps_its_payload(store: Store) -> None:
    """However the caller's wait ends, the message either exists or does not."""
    upload = store.write(store.upload())
    draft = store.run(upload.finish())
    enqueueing = core_of(store.hf).messages.enqueue(MAIL, [draft]).__await__()
    try:
        while True:
            next(enqueueing)
            if store.hf.queues():
                break
    except StopIteration:
        pass
    enqueueing.close()
    upload.close()
    sweep(store.hf)
    assert store.read(store.reader(store.claim())) == PAYLOAD


# --- Refusals --------------------------------------------------------------------------------------------------------


def refused(store: Store, error: type[Exception], payload: bytes, **options: Any) -> int:
    """Return how many bytes had been written when it was refused. Nothing of it remains."""
    before = store.kept()
    upload = store.upload(**options)
    written: list[int] = []

    def write() -> None:
        for start in range(0, len(payload), PART):
            store.run(upload.write(payload[start : start + PART]))
            written.append(PART)
        store.finish(upload)

    with pytest.raises(error):
        write()
    upload.close()
    sweep(store.hf)
    assert store.kept() == before
    return sum(written)


def test_a_payload_beyond_max_payload_is_refused_while_it_comes(store: Store) -> None:
    assert refused(store, PayloadTooLarge, bytes(MAX_PAYLOAD * 2)) <= MAX_PAYLOAD
    assert store.enqueue(bytes(MAX_PAYLOAD)).snowflake


@pytest.mark.parametrize(
    ("quota", "error"), [("max_bytes", OverQuota), ("max_message_bytes", PayloadTooLarge)], ids=["kept", "of one"]
)
def test_quotas_are_exact_and_refuse_while_the_payload_comes(store: Store, quota: str, error: type[Exception]) -> None:
    store.hf.tenant().set(quotas={quota: len(PAYLOAD) + 4})
    assert refused(store, error, PAYLOAD, headers={"five": "5"}) > len(PAYLOAD) - PART
    assert refused(store, error, PAYLOAD * 2) < len(PAYLOAD) + PIECE_BYTES
    store.enqueue(headers={"one": "1"})
    assert store.hf.queue("mail").stats().bytes == len(PAYLOAD) + 4


def test_a_tenant_with_as_many_messages_as_it_may_keep_is_refused_early(store: Store) -> None:
    store.hf.tenant().set(quotas={"max_messages": 1})
    store.enqueue()
    assert refused(store, OverQuota, PAYLOAD) <= (1 << 20) + PART


def test_uploads_of_one_tenant_do_not_fill_the_disk_beside_its_quota(store: Store) -> None:
    store.hf.tenant().set(quotas={"max_bytes": 3 << 20})
    first = store.write(store.upload())
    refused(store, OverQuota, PAYLOAD)
    store.enqueue(ref=QueueRef("another", "mail"))
    store.finish(first)
    first.close()
    assert store.hf.queue("mail").stats().ready == 1


def test_a_duplicate_is_answered_though_the_quota_is_used_up(store: Store) -> None:
    store.hf.tenant().set(quotas={"max_bytes": len(PAYLOAD)})
    first = store.enqueue(key="order-7")
    assert store.enqueue(key="order-7").snowflake == first.snowflake


def test_an_upload_to_a_queue_that_takes_nothing_is_refused_early(store: Store) -> None:
    store.hf.queue("mail").enqueue(b"held")
    store.hf.queue("mail").claim(1)
    store.hf.queue("mail").delete(force_after=3_600)
    assert refused(store, Draining, PAYLOAD) <= (1 << 20) + PART


def test_an_upload_to_a_queue_that_is_deleted_meanwhile_is_refused(store: Store) -> None:
    store.hf.queue("mail").enqueue(b"held")
    store.hf.queue("mail").claim(1)
    upload = store.write(store.upload())
    store.hf.queue("mail").delete(force_after=3_600)
    with pytest.raises(Draining):
        store.finish(upload)
    upload.close()


def test_without_auto_create_an_upload_to_no_queue_is_refused_early(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", "os", settings={"auto_create": False})
    assert refused(store, QueueNotFound, PAYLOAD) <= (1 << 20) + PART
    store.hf.close()


def test_nothing_is_taken_in_while_the_disk_is_low(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", "os", low_disk_bytes=1 << 62)
    assert refused(store, StoreUnavailable, PAYLOAD) <= (1 << 20) + PART
    store.hf.close()


def test_an_upload_that_outlives_its_store_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", "fsync")
    upload = store.write(store.upload())
    store.hf.close()
    with pytest.raises(StoreUnavailable):
        store.run(upload.write(PAYLOAD[:PIECE_BYTES]))
    upload.close()
    report = verify(store.path)
    assert (report.is_clean, report.unfinished) == (True, 1)


# --- Reading ---------------------------------------------------------------------------------------------------------


def test_reading_ends_with_an_error_once_the_message_is_gone(store: Store) -> None:
    store.enqueue()
    delivery = store.claim()
    reader = store.reader(delivery)
    assert store.next(reader) == PAYLOAD[:PIECE_BYTES]
    store.hf.queue("mail").ack([str(delivery.receipt)])
    with pytest.raises(MessageNotFound):
        store.next(reader)


@pytest.mark.parametrize("size", [10, len(PAYLOAD)], ids=["small", "as large"])
def test_reading_never_mixes_a_payload_with_the_one_put_in_its_stead(store: Store, size: int) -> None:
    store.hf.queue("mail").enqueue(PAYLOAD)
    delivery = store.claim()
    reader = store.reader(delivery)
    store.next(reader)
    queue = store.hf.queue("mail")
    _fail(store, delivery.receipt)
    queue.redrive(edit={"id": delivery.id, "payload": b"!" * size})
    with pytest.raises(MessageNotFound):
        store.read(reader)


def _fail(store: Store, receipt: Receipt) -> None:
    [result] = store.hf.queue("mail").nack([str(receipt)], "broken", final=True)
    assert result.ok


@pytest.mark.parametrize("number", [0, 3, len(PAYLOAD) // PIECE_BYTES])
def test_a_damaged_payload_is_never_handed_out_to_its_end(store: Store, number: int) -> None:
    enqueued = store.enqueue()
    delivery = store.claim()
    assert delivery.pieces is not None
    engine = store.rocks._engine
    key = keys.PIECES + keys.pack_blob_id(delivery.pieces.blob_id) + number.to_bytes(4, "big")
    good = engine.database.get(keys.INDEXES, key)
    assert good is not None
    _put(store, key, good[:-1] + bytes([good[-1] ^ 1]))
    reader = store.reader(delivery)
    parts: list[bytes] = []
    with pytest.raises(StoreUnavailable):
        store.read(reader, parts)
    assert sum(map(len, parts)) < len(PAYLOAD)
    _put(store, key, good)
    assert enqueued.snowflake == delivery.snowflake


def _put(store: Store, key: bytes, value: bytes) -> None:
    engine = store.rocks._engine
    engine.begin()
    engine.put(key, value, keys.INDEXES)
    engine.written()


def test_a_message_that_is_settled_is_not_read_for_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a message that expires, is moved or removed: only a reader of the payload pays for it."""
    store.enqueue()
    store.reopen(is_killed=False)
    delivery = store.claim()
    read: list[bytes] = []
    database = store.rocks._engine.database
    get_uncached = database.get_uncached
    monkeypatch.setattr(database, "get_uncached", lambda family, key: read.append(key) or get_uncached(family, key))
    store.clock.advance(3_600_000)
    sweep(store.hf)
    assert not read
    assert store.hf.queue("mail").list()[0].bytes == len(PAYLOAD)
    store.hf.queue("mail").purge()
    assert not read
    assert delivery.bytes == len(PAYLOAD)
