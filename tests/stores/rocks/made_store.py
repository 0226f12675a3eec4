"""A store with messages and keys of every kind, and ways to damage it."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from holdfast import NewMessage
from holdfast.client.client import AsyncHoldfast
from holdfast.model.ids import MessageId
from holdfast.stores.formats.message_record import decode_life, encode_life
from holdfast.stores.rocks import RocksStore, keys
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.stores.rocks.verify.store_check import verify
from holdfast.testing import EmbeddedSubject

WEEK_MS = 7 * 86_400_000
LARGE = b"x" * ((1 << 20) + 300_000)


@dataclass
class Made:
    """The directory of the store, and the ids of its messages by name."""

    path: Path
    ids: dict[str, bytes] = field(default_factory=dict)

    def note(self, name: str, id: MessageId | str) -> None:
        self.ids[name] = bytes.fromhex(str(id).replace("-", ""))


# The queues in order of their making: tenants and queues are numbered from 1.
M, VI, LI, LE, JR, IX, DIRECTORY = (
    keys.MESSAGES,
    keys.VISIBLE,
    keys.EXPIRIES,
    keys.LEASES,
    keys.JOURNAL,
    keys.INDEXES,
    keys.DIRECTORY,
)

JOBS = keys.prefix(1, 1)
GROUPED = keys.prefix(1, 2)
GONE = keys.prefix(1, 3)
OTHER = keys.prefix(2, 1)


def make_healthy(path: Path) -> Made:
    made = Made(path)
    subject = EmbeddedSubject(
        lambda dice: RocksStore(made.path, dice, durability=Durability.OS, journal_retention_ms=WEEK_MS)
    )
    asyncio.run(fill(subject, made))
    return made


def copy_made(made: Made, path: Path) -> Made:
    shutil.copytree(made.path, path)
    return Made(path, made.ids)


async def fill(subject: EmbeddedSubject, made: Made) -> None:
    async with subject.open(max_payload=4 << 20) as hf:
        jobs = hf.queue("jobs", tenant="acme")
        await _plain_messages(subject, hf, made)
        await _groups(hf, made)
        gone = hf.queue("gone", tenant="acme")
        await gone.enqueue([b"1", b"2"], key=None, delay=5)
        await gone.enqueue(b"3", key="left behind")
        await gone.delete(force_after=0)
        await subject.sweep(hf)
        other = hf.queue("other", tenant="globex")
        [first, second] = await other.enqueue([NewMessage(b"to move"), NewMessage(b"moved failed")])
        made.note("moved", first)
        made.note("moved failed", second)
        [_, failed] = await other.claim(limit=2)
        await failed.nack("broken", final=True)
        subject.clock.advance(6_000)
        await subject.sweep(hf)
        await jobs.enqueue(b"makes place")
        for state in ("ready", "failed"):
            await other.move("jobs", tenant="acme", state=state)
        [held] = await other.enqueue(b"held by a ledger")
        made.note("ledger", held)
        await other.claim(limit=1, lease=3_600, ledger=("spark", 7))
        await other.ledger_ack("spark", 5)


async def _plain_messages(subject: EmbeddedSubject, hf: AsyncHoldfast, made: Made) -> None:
    jobs = hf.queue("jobs", tenant="acme")
    await jobs.set_policy(keep_succeeded_ms=3_600_000)
    for name, options in {
        "kept": {},
        "retried": {},
        "failed": {},
        "redriven": {},
        "expired": {},
        "released": {},
        "in flight": {},
    }.items():
        [id] = await jobs.enqueue({"name": name}, headers={"kind": name}, **options)
        made.note(name, id)
    claimed = {message.json()["name"]: message for message in await jobs.claim(limit=10, lease=5, state=True)}
    await claimed["in flight"].save_state({"page": 3})
    await claimed["in flight"].extend(3_600)
    await claimed["kept"].ack()
    await claimed["retried"].save_state({"tries": 1})
    await claimed["retried"].nack("not yet", delay=600)
    await claimed["failed"].progress(40, "half")
    await claimed["failed"].nack("never", final=True)
    await claimed["redriven"].nack("later", final=True)
    await jobs.redrive({"error_contains": "later"})
    await claimed["released"].release()
    subject.clock.advance(5_001)
    await subject.sweep(hf)  # "expired" runs out
    for name, payload, options in (
        ("ready", b"ready", {}),
        ("urgent", b"urgent", {"priority": 1}),
        ("delayed", b"delayed", {"delay": 900}),
        ("ttl", b"ttl", {"ttl": 1_800}),
        ("keyed", b"keyed", {"key": "order-7", "correlation_id": "c-7"}),
        ("large", LARGE, {}),
    ):
        [id] = await jobs.enqueue(payload, **options)
        made.note(name, id)
    await jobs.enqueue(b"keyed", key="order-7")
    [removed] = await jobs.enqueue(b"removed")
    await jobs.remove(removed)
    made.note("removed", removed)
    await jobs.reprioritise(200, {"ids": [str_of(made.ids["ready"])]})
    # A key used anew after its window leaves an end behind that is passed over.
    await jobs.set_policy(dedup_window_ms=1_000)
    await jobs.enqueue(b"again", key="again")
    subject.clock.advance(1_001)
    await jobs.enqueue(b"again", key="again")


async def _groups(hf: AsyncHoldfast, made: Made) -> None:
    grouped = hf.queue("grouped", tenant="acme")
    for group in ("idle", "busy"):
        for number, id in enumerate(await grouped.enqueue([b"0", b"1", b"2"], group=group, priority=50)):
            made.note(f"{group} {number}", id)
    idle = await grouped.claim(limit=3)
    busy = await grouped.claim(limit=2, lease=3_600)
    assert [len(idle), len(busy)] == [3, 2]
    await idle[0].ack()
    await idle[1].nack("again", delay=60)
    await idle[2].release()


def blob_id_of(id16: bytes) -> bytes:
    """Return the packed blob id of a payload that was enqueued whole: its message's id."""
    return keys.pack_blob_id(keys.parse_id(id16))


def str_of(id16: bytes) -> str:
    text = id16.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class Damager:
    """Direct access to the keys of a closed store."""

    def __init__(self, made: Made) -> None:
        self.ids = made.ids
        self._database = Database(made.path)

    def close(self) -> None:
        self._database.close()

    def put(self, family: int, key: bytes, value: bytes) -> None:
        self._database.commit.put(key, value, family)
        self._database.write()

    def delete(self, family: int, key: bytes) -> None:
        assert self._database.get(family, key) is not None, "the damage must hit something"
        self._database.commit.delete(key, family)
        self._database.write()

    def get(self, family: int, key: bytes) -> bytes:
        value = self._database.get(family, key)
        assert value is not None
        return value

    def move(self, family: int, key: bytes, to: bytes) -> None:
        self.put(family, to, self.get(family, key))
        self.delete(family, key)

    def keys(self, family: int, lead: bytes) -> list[bytes]:
        return list(self._database.scan(family, lead, keys.after(lead)))

    def key_of(self, family: int, lead: bytes, name: str) -> bytes:
        """Return the only key of this space that contains the message's id."""
        [found] = [key for key in self.keys(family, lead) if self.ids[name] in key]
        return found

    def change_life(self, family: int, key: bytes, **changes: Any) -> None:
        has_state, life = decode_life(self.get(family, key))
        self.put(family, key, encode_life(msgspec.structs.replace(life, **changes), has_state=has_state))

    def first_block(self) -> tuple[bytes, list[Any]]:
        [key, *_] = self.keys(keys.JOURNAL, b"\0")
        return key, msgspec.msgpack.decode(self.get(keys.JOURNAL, key))


def damaged(made: Made, damage: Callable[[Damager], None]) -> list[str]:
    damager = Damager(made)
    try:
        damage(damager)
    finally:
        damager.close()
    report = verify(made.path)
    assert report.violation_count == len(report.violations)
    return [str(violation) for violation in report.violations]
