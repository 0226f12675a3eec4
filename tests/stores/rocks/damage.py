"""Ways to damage the files of a store, and to read the messages that remain."""

import os
import struct
from pathlib import Path

from tests.crash.rocks import open_store

MESSAGES = 40
BLOCK = 32_768


def payload(number: int) -> bytes:
    return f"payload {number:04} ".encode() * 20


def read_all(store: Path) -> list[bytes]:
    """Return every payload, by each way of reading; and the journal."""
    with open_store(store) as hf:
        queue = hf.queue("mail")
        assert queue.stats().ready == len(queue.list(limit=1_000))
        listed = [queue.get(info.id, payload=True).payload or b"" for info in queue.list(limit=1_000)]
        assert [message.payload for message in queue.claim(1_000)] == listed
        assert len([event for event in hf.journal(limit=1_000) if event.event == "enqueued"]) == len(listed)
    return listed


def flip(file: Path, at: int, bits: int = 0x55) -> None:
    raw = bytearray(file.read_bytes())
    raw[at] ^= bits
    file.write_bytes(raw)


def cut(file: Path, size: int) -> None:
    os.truncate(file, size)


def log_of(store: Path) -> Path:
    return max((store / "db").glob("*.log"))


def records_of(log: Path) -> list[tuple[int, int]]:
    """Return start and length of each record: checksum 4 | length 2 | type 1 | data, none across a block of 32 KiB."""
    raw, at, found = log.read_bytes(), 0, []
    while at + 7 <= len(raw):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left
            continue
        _, length, _ = struct.unpack_from("<IHB", raw, at)
        found.append((at, 7 + length))
        at += 7 + length
    return found
