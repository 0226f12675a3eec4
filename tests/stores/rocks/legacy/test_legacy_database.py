"""Reading databases of the legacy layout: each message is returned once, and every other key is reported by kind."""

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import capnp
import pytest

import holdfast
from holdfast.model import ids
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.rocks.legacy.entries import LegacyMessage, LegacyPosition, Oddity
from holdfast.stores.rocks.legacy.field_order import FieldOrder
from holdfast.stores.rocks.legacy.legacy_database import opened
from holdfast.stores.rocks.legacy.values import (
    LeaseEntry,
    StoredItem,
    Unreadable,
    decode_item,
    decode_lease,
    unpack,
)
from holdfast.testing import ManualClock
from tests.machinery.legacy import databases
from tests.machinery.legacy.databases import LegacyWriter, index_key, make_legacy
from tests.seeds import run_seed

SCHEMA = capnp.load(databases.SCHEMA_FILE)
ORDER = FieldOrder(contents=0, index_key=1, id=2)
NOW_S = 1_900_000_000


def found_in(path: Path, after: LegacyPosition | None = None) -> tuple[dict[bytes, LegacyMessage], "Counter[str]"]:
    messages: dict[bytes, LegacyMessage] = {}
    oddities: Counter[str] = Counter()
    with opened(path) as database:
        for _, found in database.read(after):
            if isinstance(found, LegacyMessage):
                assert found.id not in messages
                messages[found.id] = found
            elif isinstance(found, Oddity):
                oddities[found.kind.value] += 1
    return messages, oddities


@pytest.mark.spec("4.7")
@pytest.mark.parametrize("families", [False, True], ids=["one family", "families"])
@pytest.mark.parametrize("packs", [False, True], ids=["plain", "packed"])
def test_every_message_is_found_once_with_its_payload_and_its_lease(
    tmp_path: Path, families: bool, packs: bool
) -> None:
    path = tmp_path / "old"
    expected = make_legacy(path, 2_000, seed=run_seed(), now_s=NOW_S, families=families, packs=packs)

    messages, oddities = found_in(path)

    assert expected.messages == {id: (each.payload, each.lease_expires_at) for id, each in messages.items()}
    assert oddities == expected.oddities
    assert len(oddities) == 5


def test_a_reading_continues_from_any_position(tmp_path: Path) -> None:
    path = tmp_path / "old"
    make_legacy(path, 200, seed=run_seed(), now_s=NOW_S, families=True)
    with opened(path) as database:
        every = list(database.read())
        for at in range(0, len(every), 37):
            assert list(database.read(every[at][0])) == every[at + 1 :]


@pytest.mark.spec("4.7")
def test_a_message_is_visible_from_the_time_in_its_own_index_key(tmp_path: Path) -> None:
    writer = LegacyWriter(tmp_path / "old")
    writer.add(b"later", b"x", NOW_S)
    writer.put(b"available/strange", writer.item(b"strange", b"y", b"visibility_index/?"))
    writer.put(b"available/never", writer.item(b"never", b"z", index_key((1 << 64) - 1, b"never")))
    writer.close()

    messages, _ = found_in(tmp_path / "old")

    assert {id: each.visible_at for id, each in messages.items()} == {
        b"later": NOW_S * 1_000,
        b"strange": 0,
        b"never": 0,
    }


def test_of_several_leases_the_last_to_end_holds(tmp_path: Path) -> None:
    writer = LegacyWriter(tmp_path / "old")
    writer.claim(b"first", {b"a": b"1", b"b": b"2"}, NOW_S)
    writer.claim(b"second", {b"b": b"2"}, NOW_S + 50)
    # By key, as some programs name what they hold; and with its expiry in itself alone.
    writer.put(b"in_progress/c", writer.item(b"c", b"3", b""))
    writer.put(b"leases/third", writer.lease([b"in_progress/c"], NOW_S + 7))
    writer.close()

    messages, oddities = found_in(tmp_path / "old")

    assert {id: each.lease_expires_at for id, each in messages.items()} == {
        b"a": NOW_S * 1_000,
        b"b": (NOW_S + 50) * 1_000,
        b"c": (NOW_S + 7) * 1_000,
    }
    assert not oddities


def test_a_database_in_use_is_not_read(tmp_path: Path) -> None:
    make_legacy(tmp_path / "old", 5, seed=1, now_s=NOW_S)
    reading = f"""
import sys
from holdfast.stores.rocks.legacy.legacy_database import opened
with opened({str(tmp_path / "old")!r}):
    print("open", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", reading], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreUnavailable, match="in use by another program"), opened(tmp_path / "old"):
            pass
        other.communicate("")
    with opened(tmp_path / "old") as database:
        assert list(database.read())


def test_a_directory_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="not a database"), opened(tmp_path):
        pass
    writer = LegacyWriter(tmp_path / "other")
    writer.put(b"users/1", b"somebody else's")
    writer.close()
    with pytest.raises(InvalidArgument, match="not of the legacy layout"), opened(tmp_path / "other"):
        pass
    LegacyWriter(tmp_path / "empty").close()
    with opened(tmp_path / "empty") as database:
        assert list(database.read()) == []


@pytest.mark.spec("4.7")
async def test_opened_as_a_store_it_is_read_as_the_default_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "old"
    expected = make_legacy(path, 300, seed=run_seed(), now_s=NOW_S - 300)
    before = {entry.name: entry.read_bytes() for entry in path.iterdir() if entry.suffix in (".log", ".sst")}

    async with holdfast.open_async(str(path), legacy_read_only=True, clock=ManualClock(NOW_S * 1_000)) as hf:
        assert "it is read-only" in caplog.text
        queue = hf.queue()
        assert [each.queue for each in await hf.queues()] == ["default"]
        stats = await queue.stats()
        assert stats.ready + stats.delayed + stats.in_flight == expected.count
        held = [each[1] for each in (expected.messages or {}).values() if each[1] is not None]
        assert stats.in_flight == sum(ends_at > NOW_S * 1_000 for ends_at in held)
        infos = []
        page = await queue.list(limit=70)
        while True:
            infos += page
            if page.cursor is None:
                break
            page = await queue.list(limit=70, cursor=page.cursor)
        shown = {
            bytes.fromhex(each.headers["legacy-id"]) if each.headers else ids.to_bytes(each.snowflake) for each in infos
        }
        assert shown == set(expected.messages or {})
        [first, *rest] = await queue.peek(20)
        assert first.visible_at <= rest[-1].visible_at
        assert (await queue.get(first.id, payload=True)).payload == first.payload
        with pytest.raises(holdfast.MessageNotFound):
            await queue.get(1)
        assert len(await queue.list(state="in_flight", limit=1_000)) == stats.in_flight

    assert {name: (path / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    "change",
    [
        lambda queue: queue.enqueue("x"),
        lambda queue: queue.claim(),
        lambda queue: queue.claim(wait=1),
        lambda queue: queue.purge(),
        lambda queue: queue.set_policy(max_retries=1),
        lambda queue: queue.pause(),
        lambda queue: queue.delete(),
        lambda queue: queue.schedule("s", every=60, payload="x"),
    ],
    ids=["enqueue", "claim", "wait", "purge", "policy", "pause", "delete", "schedule"],
)
async def test_opened_as_a_store_it_refuses_every_change_and_says_what_to_do(
    tmp_path: Path, change: Callable[[Any], Any]
) -> None:
    make_legacy(tmp_path / "old", 5, seed=1, now_s=NOW_S)
    async with holdfast.open_async(str(tmp_path / "old"), legacy_read_only=True) as hf:
        with pytest.raises(InvalidArgument, match=r"opened read-only: .*holdfast db migrate"):
            await change(hf.queue())


def test_a_damaged_file_is_said_and_not_read_past(tmp_path: Path) -> None:
    path = tmp_path / "old"
    make_legacy(path, 500, seed=1, now_s=NOW_S)
    (path / next(entry.name for entry in path.iterdir() if entry.name.startswith("MANIFEST-"))).unlink()

    with pytest.raises(StoreUnavailable, match="cannot be read"), opened(path):
        pass


# --- Values --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("4.7")
def test_values_are_read_as_the_library_writes_them() -> None:
    dice = random.Random(run_seed())
    for _ in range(300):
        contents, index, id = (dice.randbytes(dice.choice((0, 1, 8, 9, 300, 9_000))) for _ in range(3))
        index = index and b"visibility_index/" + index
        for write in _ways():
            # A small first segment spreads the message over several.
            item = SCHEMA.ItemContentsKeyId.new_message(dice.choice((1, 2, 5, 1_024)))
            fields = [("contents", contents), ("visibilityTsIndexKey", index), ("id", id or b"i")]
            dice.shuffle(fields)
            for name, value in fields:
                setattr(item, name, value)
            assert decode_item(write(item), id or b"i", ORDER) == StoredItem(contents, id or b"i", index)

            keys = [dice.randbytes(dice.randrange(20)) for _ in range(dice.randrange(30))]
            lease = SCHEMA.LeaseEntry.new_message(dice.choice((1, 3, 1_024)))
            lease.keys, lease.expiryTsSecs = keys, 7
            assert decode_lease(write(lease)) == LeaseEntry(keys, 7)


def test_a_value_that_was_changed_is_read_or_refused_and_nothing_else() -> None:
    dice = random.Random(run_seed())
    item = SCHEMA.ItemContentsKeyId.new_message(2)
    item.contents, item.visibilityTsIndexKey, item.id = b"c" * 50, index_key(1, b"i" * 16), b"i" * 16
    lease = SCHEMA.LeaseEntry.new_message(2)
    lease.keys = [b"a", b"b" * 30]
    for raw, read in ((bytes(item.to_bytes()), _read_item), (bytes(lease.to_bytes()), decode_lease)):
        refused = 0
        for _ in range(3_000):
            changed = bytearray(raw)
            for _ in range(dice.randrange(1, 4)):
                changed[dice.randrange(len(changed))] = dice.randrange(256)
            try:
                read(bytes(changed[: dice.randrange(len(changed) + 1)]))
            except Unreadable:
                refused += 1
        assert refused > 1_000


def test_what_is_cut_short_is_not_unpacked() -> None:
    for packed in (b"\x01", b"\x00", b"\xff12345678\x05abc"):
        with pytest.raises(Unreadable):
            unpack(packed)


def _read_item(raw: bytes) -> StoredItem:
    return decode_item(raw, b"i" * 16, ORDER)


def _ways() -> list[Callable[[Any], bytes]]:
    return [lambda message: bytes(message.to_bytes()), lambda message: bytes(message.to_bytes_packed())]
