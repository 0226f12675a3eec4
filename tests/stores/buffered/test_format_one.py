"""A write-ahead log of format 1, written once and kept as a fixture, is read by every later version.

So are the same calls and positions in Redis, which servers of two versions share during an upgrade.
"""

import base64
import json
from pathlib import Path
from uuid import UUID

import pytest

from holdfast.model.names import QueueRef
from holdfast.stores.buffered.log.reader import read_calls, segment_files
from holdfast.stores.buffered.log.records import FORMAT, SegmentHeader, decode_header
from holdfast.stores.buffered.log.replay import WalPosition
from holdfast.stores.buffered.log.wal import Wal
from holdfast.stores.buffered.redis_keys import (
    barred_key,
    buffer_key,
    decode_position,
    decode_reserved,
    encode_position,
    encode_reserved,
    handed_key,
    reserved_key,
)
from holdfast.stores.formats.logged_enqueue import LoggedCall, LoggedMessage, decode_call
from holdfast.stores.reserved_message import Reserved

NOW_MS = 1_750_000_000_000
FIRST_ID = 1 << 60
PLAIN = LoggedCall(
    "acme",
    "mail",
    7,
    NOW_MS,
    [
        LoggedMessage(
            FIRST_ID, b'"one"', 100, NOW_MS, NOW_MS + 86_400_000, None, 5, True, "application/json", {}, None, None
        ),
        LoggedMessage(
            FIRST_ID + 1,
            b"\x00two",
            100,
            NOW_MS,
            NOW_MS + 86_400_000,
            None,
            4,
            False,
            "application/octet-stream",
            {},
            None,
            None,
        ),
    ],
)
RICH = LoggedCall(
    "acme",
    "mail",
    7,
    NOW_MS,
    [
        LoggedMessage(
            *(FIRST_ID + 20, b"rich", 3, NOW_MS + 5_000, NOW_MS + 60_000, 60_000, 6, False, "text/plain"),
            *({"a": "b"}, "c-1", 7),
        )
    ],
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    for name, content in json.loads(Path(__file__).with_name("format_1.json").read_text()).items():
        (tmp_path / name).write_bytes(base64.b64decode(content))
    return tmp_path


def test_a_log_of_format_1_is_read_by_a_job(log: Path) -> None:
    [file] = segment_files(log)
    header = decode_header(file.path.read_bytes())
    assert isinstance(header, SegmentHeader)
    assert FORMAT == 1, "keep this fixture, and add one of the new format"
    read = read_calls(file, is_over=True)
    assert [(batch.shard, batch.calls) for batch in read.batches] == [(0, [(0, PLAIN)]), (1, [(0, RICH)])]


def test_a_log_of_format_1_is_replayed_by_its_server_without_the_voided_call(log: Path) -> None:
    wal = Wal(log)
    try:
        assert [decode_call(each.body) for each in wal.replay()] == [PLAIN, RICH]
    finally:
        wal.close()


def test_the_keys_and_entries_in_redis_stay_as_other_versions_know_them() -> None:
    ref = QueueRef("acme", "mail")
    assert [make(ref) for make in (buffer_key, barred_key, reserved_key, handed_key)] == [
        *("holdfast:buffer:acme:mail", "holdfast:barred:acme:mail", "holdfast:queue:acme:mail"),
        "holdfast:handed:acme:mail",
    ]
    position = WalPosition(UUID(int=1), 0xABC, 2, 34)
    field = "00000000000000000000000000000001:abc:2:34"
    assert (encode_position(position), decode_position(field.encode())) == (field, position)
    reserved = Reserved(FIRST_ID, 5, 100, NOW_MS)
    assert encode_reserved(reserved) == f"{FIRST_ID}|5|100|{NOW_MS}"
    assert decode_reserved(f"{NOW_MS}|{FIRST_ID}|5|100|{NOW_MS}".encode()) == reserved
