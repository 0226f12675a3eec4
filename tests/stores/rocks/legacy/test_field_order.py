"""The order of a stored_item's fields differs between legacy databases, and is inferred from the values of each."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.main import app
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.rocks.legacy.entries import LegacyMessage
from holdfast.stores.rocks.legacy.field_order import ORDERS, FieldOrderChoice, choose_order
from holdfast.stores.rocks.legacy.legacy_database import opened
from holdfast.stores.rocks.legacy.message_import import MigrationProgress
from holdfast.stores.rocks.legacy.migration import NEW, LegacyMigration, migrate_legacy
from tests.machinery.legacy.databases import ITEM_ORDERS, LegacyWriter, index_key, make_legacy
from tests.seeds import run_seed

NOW_S = 1_900_000_000
NAMES = {"Contents": "contents", "Id": "id", "Key": "visibility_ts_index_key"}

each_order = pytest.mark.parametrize("order", ITEM_ORDERS)
plain_or_packed = pytest.mark.parametrize("packs", [False, True], ids=["plain", "packed"])


def spelled(order: str) -> str:
    """Return the order of the fields of a struct in legacy.capnp, as `FieldOrder` writes it."""
    rest, names = order.removeprefix("Item"), []
    while rest:
        [part] = [part for part in NAMES if rest.startswith(part)]
        names.append(NAMES[part])
        rest = rest.removeprefix(part)
    return ", ".join(names)


def payloads_in(path: Path) -> dict[bytes, bytes]:
    with opened(path) as database:
        return {found.id: found.payload for _, found in database.read() if isinstance(found, LegacyMessage)}


@each_order
@plain_or_packed
def test_a_database_of_any_order_is_migrated_whole_and_its_order_is_said(
    tmp_path: Path, order: str, packs: bool, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    expected = make_legacy(path, 60, seed=run_seed(), now_s=NOW_S, order=order, packs=packs, is_damaged=False)
    caplog.set_level(logging.INFO, "holdfast")

    app(["db", "migrate", str(path)], standalone_mode=False)

    assert f"order of the fields in its values: {spelled(order)}\n" in capsys.readouterr().out
    assert f"order='{spelled(order)}'" in caplog.text
    with holdfast.open(str(path), durability="os") as hf:
        page = hf.queue().list(None, 1_000, payload=True)
        payloads = sorted(info.payload or b"" for info in page)
    assert payloads == sorted(contents for contents, _ in (expected.messages or {}).values())


@each_order
@plain_or_packed
def test_values_without_an_id_are_readable_in_any_order(tmp_path: Path, order: str, packs: bool) -> None:
    path = tmp_path / "old"
    writer = LegacyWriter(path, order=order, packs=packs)
    expected = {b"id%d" % n: b"payload %d" % n for n in range(20)}
    for id, contents in expected.items():
        writer.put(b"available/" + id, writer.item(b"", contents, index_key(NOW_S, id)))
    writer.close()

    assert payloads_in(path) == expected


@each_order
@pytest.mark.parametrize(
    "contents_of",
    [lambda id: b"", lambda id: id, lambda id: b"visibility_index/", lambda id: b"available/" + id],
    ids=["empty", "the id", "the index's prefix", "a key"],
)
def test_payloads_that_look_like_another_field_do_not_mislead(
    tmp_path: Path, order: str, contents_of: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "old"
    writer = LegacyWriter(path, order=order)
    ids = [b"id%d" % n for n in range(20)]
    for id in ids:
        writer.add(id, contents_of(id), NOW_S)
    writer.close()

    assert payloads_in(path) == {id: contents_of(id) for id in ids}


def test_an_unknown_order_is_refused_and_nothing_is_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "store"
    for id, order in ((b"one", "ItemContentsIdKey"), (b"two", "ItemIdContentsKey")):
        writer = LegacyWriter(path, order=order)
        writer.add(id, b"payload", NOW_S)
        writer.close()
    before = {each.name: each.read_bytes() for each in path.iterdir()}

    for arguments in ((), ("--accept-unreadable", "1")):
        with pytest.raises(InvalidArgument, match="several orders"):
            app(["db", "migrate", str(path), *arguments], standalone_mode=False)
    assert {each.name: each.read_bytes() for each in path.iterdir()} == before


def test_the_order_of_most_values_is_chosen_and_the_others_are_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for ids, order in (((b"a", b"b", b"c"), "ItemKeyIdContents"), ((b"d",), "ItemIdContentsKey")):
        writer = LegacyWriter(path, order=order)
        for id in ids:
            writer.add(id, b"payload", NOW_S)
        writer.close()

    with pytest.raises(InvalidArgument, match=r"1 keys or values cannot be read, and 3 messages can.*available/d"):
        app(["db", "migrate", str(path)], standalone_mode=False)
    assert set(payloads_in(path)) == {b"a", b"b", b"c"}


async def test_a_copy_that_was_begun_with_another_order_is_not_continued(tmp_path: Path) -> None:
    """An older version read only one order, and did not store it in the progress."""
    path = tmp_path / "store"
    make_legacy(path, 20, seed=1, now_s=NOW_S, order="ItemIdContentsKey", is_damaged=False)
    migration = LegacyMigration(path)
    await migration.open()
    await migration._importer.note(MigrationProgress(begun_at=NOW_S * 1_000))
    await migration.close()

    with pytest.raises(StoreUnavailable, match="was begun with fields in the order contents, visibility_ts_index_key"):
        await migrate_legacy(path)
    shutil.rmtree(path / NEW)
    assert (await migrate_legacy(path)).messages == 20


def test_a_clear_order_is_chosen_from_a_sample_and_a_close_one_from_every_value() -> None:
    def value(n: int, contents: bytes) -> tuple[bytes, tuple[bytes, bytes, bytes]]:
        id = b"id%d" % n
        return id, (index_key(NOW_S, id), id, contents)

    [order] = [each for each in ORDERS if str(each) == "visibility_ts_index_key, id, contents"]
    assert choose_order(value(n, b"x%d" % n) for n in range(5_000)) == FieldOrderChoice(order, 1_000, 1_000)
    # Values whose payload is empty fit two orders; only the last tells them apart by a contradiction.
    assert choose_order(value(n, b"x" if n == 4_999 else b"") for n in range(5_000)) == FieldOrderChoice(
        order, 5_000, 5_000
    )
    assert choose_order([]) == FieldOrderChoice(ORDERS[0], 0, 0)
