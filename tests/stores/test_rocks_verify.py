"""A store that was used in every way verifies clean; each kind of damage is named."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rocksdict import WriteBatch

from holdfast import NewMessage
from holdfast.client.client import AsyncHoldfast
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.ids import MessageId, to_bytes
from holdfast.stores.record import decode_life, encode_life
from holdfast.stores.rocks import RocksStore, keys, verify_journal
from holdfast.stores.rocks.database import Database
from holdfast.stores.rocks.engine import Durability
from holdfast.stores.rocks.verify import verify
from holdfast.testing import EmbeddedSubject

WEEK_MS = 7 * 86_400_000
LARGE = b"x" * ((1 << 20) + 300_000)


@dataclass
class Made:
    """A store with messages of every kind, by name, and where it lies."""

    path: Path
    ids: dict[str, bytes] = field(default_factory=dict)

    def note(self, name: str, id: MessageId | str) -> None:
        self.ids[name] = bytes.fromhex(str(id).replace("-", ""))


# The queues in order of their making: tenants and queues are numbered from 1.
JOBS = keys.prefix(1, 1)
GROUPED = keys.prefix(1, 2)
GONE = keys.prefix(1, 3)
OTHER = keys.prefix(2, 1)


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


def place_of(id16: bytes) -> bytes:
    """Of a payload that was enqueued whole: the place is its message's id."""
    return keys.place(keys.parse_id(id16))


def str_of(id16: bytes) -> str:
    text = id16.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = Made(tmp_path_factory.mktemp("verify") / "store")
    subject = EmbeddedSubject(
        lambda dice: RocksStore(made.path, dice, durability=Durability.OS, journal_retention_ms=WEEK_MS)
    )
    asyncio.run(fill(subject, made))
    return made


@pytest.fixture
def made(healthy: Made, tmp_path: Path) -> Made:
    shutil.copytree(healthy.path, tmp_path / "store")
    return Made(tmp_path / "store", healthy.ids)


class Damager:
    """Reads and alters a closed store behind its back."""

    def __init__(self, made: Made) -> None:
        self.ids = made.ids
        self._database = Database(made.path)

    def close(self) -> None:
        self._database.close()

    def put(self, family: str, key: bytes, value: bytes) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.put(key, value, self._database.handles[family])
        self._database.write(batch)

    def delete(self, family: str, key: bytes) -> None:
        assert self._database.get(family, key) is not None, "the damage must hit something"
        batch = WriteBatch(raw_mode=True)
        batch.delete(key, self._database.handles[family])
        self._database.write(batch)

    def get(self, family: str, key: bytes) -> bytes:
        value = self._database.get(family, key)
        assert value is not None
        return value

    def move(self, family: str, key: bytes, to: bytes) -> None:
        self.put(family, to, self.get(family, key))
        self.delete(family, key)

    def keys(self, family: str, lead: bytes) -> list[bytes]:
        return list(self._database.scan(family, lead, keys.after(lead)))

    def key_of(self, family: str, lead: bytes, name: str) -> bytes:
        """The one key of this space that has the message's id in it."""
        [found] = [key for key in self.keys(family, lead) if self.ids[name] in key]
        return found

    def change_life(self, family: str, key: bytes, **changes: Any) -> None:
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


M, VI, LI, LE, JR, IX, DIRECTORY = (
    keys.MESSAGES,
    keys.VISIBLE,
    keys.EXPIRIES,
    keys.LEASES,
    keys.JOURNAL,
    keys.INDEXES,
    keys.DIRECTORY,
)

# What is done to one index or record of the message, the message, and what must be said of it.
DAMAGE: dict[str, tuple[Callable[[Damager], None], str, str]] = {
    "a ready message that no claim would find": (
        lambda d: d.delete(VI, d.key_of(VI, JOBS, "urgent")),
        "acme/jobs {urgent}",
        "is missing in the visibility index (vi)",
    ),
    "an entry in the order of delivery without its message": (
        lambda d: d.put(VI, keys.level(JOBS, 3) + keys.instant(5) + to_bytes(12345), b""),
        "acme/jobs",
        "the visibility index (vi) has an entry, but there is no such message",
    ),
    "a message that stands in the order of delivery twice": (
        lambda d: d.put(VI, keys.level(JOBS, 3) + keys.instant(5) + d.ids["urgent"], b""),
        "acme/jobs {urgent}",
        "the visibility index (vi) has an entry that does not agree",
    ),
    "a message in flight in the order of delivery": (
        lambda d: d.put(VI, keys.level(JOBS, 100) + keys.instant(5) + d.ids["in flight"], b""),
        "acme/jobs {in flight}",
        "the visibility index (vi) has an entry that does not agree",
    ),
    "a wrong priority in the order of delivery": (
        lambda d: d.move(VI, (key := d.key_of(VI, JOBS, "urgent")), JOBS + b"\x02" + key[9:]),
        "acme/jobs {urgent}",
        "is missing in the visibility index (vi)",
    ),
    "a lease that would never run out": (
        lambda d: d.delete(LI, d.key_of(LI, JOBS, "in flight")),
        "acme/jobs {in flight}",
        "is missing in the lease expiry index (li)",
    ),
    "an expiry of a lease that ends at another time": (
        lambda d: d.put(LI, JOBS + keys.instant(9) + d.ids["in flight"], b""),
        "acme/jobs {in flight}",
        "the lease expiry index (li) has an entry that does not agree",
    ),
    "a message in flight without its lease": (
        lambda d: d.delete(LE, JOBS + d.ids["in flight"]),
        "acme/jobs {in flight}",
        "the lease expiry index (li) has an entry that does not agree",
    ),
    "a lease without its message": (
        lambda d: d.put(LE, JOBS + to_bytes(12345), d.get(LE, JOBS + d.ids["in flight"])),
        "acme/jobs",
        "has a lease entry (le), but there is no such message",
    ),
    "a message in two states": (
        lambda d: d.put(IX, keys.LIVES + JOBS + d.ids["in flight"], d.get(LE, JOBS + d.ids["in flight"])),
        "acme/jobs {in flight}",
        "is in two states",
    ),
    "a lease entry that says ready": (
        lambda d: d.change_life(LE, JOBS + d.ids["in flight"], state="ready", lease=None),
        "acme/jobs {in flight}",
        "has a lease entry (le) that says ready",
    ),
    "a life that says in flight": (
        lambda d: d.change_life(IX, keys.LIVES + JOBS + d.ids["retried"], state="in_flight"),
        "acme/jobs {retried}",
        "is in flight, but has no lease entry (le)",
    ),
    "a success that is there although nothing is kept of it": (
        lambda d: d.change_life(IX, keys.LIVES + JOBS + d.ids["kept"], keep_until=None),
        "acme/jobs {kept}",
        "succeeded and is not kept",
    ),
    "a life without its message": (
        lambda d: d.delete(M, JOBS + d.ids["failed"]),
        "acme/jobs {failed}",
        "has a life (ix f), but there is no such message",
    ),
    "a damaged life": (
        lambda d: d.put(IX, keys.LIVES + JOBS + d.ids["failed"], b"\xc1"),
        "acme/jobs {failed}",
        "life is damaged",
    ),
    "a dead letter that nobody would find": (
        lambda d: d.delete(IX, keys.DEAD + JOBS + d.ids["failed"]),
        "acme/jobs {failed}",
        "is missing in the dead letters (ix d)",
    ),
    "a dead letter that is not failed": (
        lambda d: d.put(IX, keys.DEAD + JOBS + d.ids["ready"], b""),
        "acme/jobs {ready}",
        "the dead letters (ix d) has an entry that does not agree",
    ),
    "a delayed message that is not counted as delayed": (
        lambda d: d.delete(IX, d.key_of(IX, keys.DELAYED + JOBS, "delayed")),
        "acme/jobs {delayed}",
        "is missing in the index of the delayed (ix v)",
    ),
    "a due message that is counted as delayed": (
        lambda d: d.put(IX, keys.DELAYED + JOBS + keys.instant(5) + d.ids["ready"], b""),
        "acme/jobs {ready}",
        "the index of the delayed (ix v) has an entry that does not agree",
    ),
    "a TTL that would never end": (
        lambda d: d.delete(IX, d.key_of(IX, keys.TTLS, "ttl")),
        "acme/jobs {ttl}",
        "is missing in the TTL index (ix t)",
    ),
    "a TTL of a message that has none": (
        lambda d: d.put(IX, keys.TTLS + keys.instant(5) + JOBS + d.ids["ready"], b""),
        "acme/jobs {ready}",
        "the TTL index (ix t) has an entry that does not agree",
    ),
    "a TTL of a queue that is not there": (
        lambda d: d.put(IX, keys.TTLS + keys.instant(5) + GONE + d.ids["ready"], b""),
        "acme/gone {ready}",
        "is not in the directory, but the TTL index (ix t) has an entry of it",
    ),
    "a kept success that would be kept for ever": (
        lambda d: d.delete(IX, d.key_of(IX, keys.KEPT, "kept")),
        "acme/jobs {kept}",
        "is missing in the index of kept successes (ix k)",
    ),
    "an end of keeping without its message": (
        lambda d: d.put(IX, keys.KEPT + keys.instant(5) + JOBS + to_bytes(12345), b""),
        "acme/jobs",
        "the index of kept successes (ix k) has an entry, but there is no such message",
    ),
    "a state document that is gone": (
        lambda d: d.delete(IX, keys.STATES + JOBS + d.ids["retried"]),
        "acme/jobs {retried}",
        "says it has a state document, none is there",
    ),
    "a state document that its message knows nothing of": (
        lambda d: d.put(IX, keys.STATES + JOBS + d.ids["ready"], msgspec.msgpack.encode({})),
        "acme/jobs {ready}",
        "says it has not a state document, one is there",
    ),
    "a state document without its message": (
        lambda d: d.put(IX, keys.STATES + JOBS + to_bytes(12345), msgspec.msgpack.encode({})),
        "acme/jobs",
        "has a state document (ix s), but there is no such message",
    ),
    "a damaged state document": (
        lambda d: d.put(IX, keys.STATES + JOBS + d.ids["retried"], b"\xc1"),
        "acme/jobs {retried}",
        "its state document is damaged",
    ),
    "a flipped byte of a payload": (
        lambda d: d.put(M, (key := JOBS + d.ids["ready"]), d.get(M, key)[:-1] + b"!"),
        "acme/jobs {ready}",
        "checksum does not match",
    ),
    "a record of half its length": (
        lambda d: d.put(M, (key := JOBS + d.ids["ready"]), d.get(M, key)[:10]),
        "acme/jobs {ready}",
        "is damaged",
    ),
    "a missing piece of a large payload": (
        lambda d: d.delete(IX, keys.PIECES + place_of(d.ids["large"]) + (2).to_bytes(4, "big")),
        "acme/jobs {large}",
        "its payload has 5 pieces (ix c) of 6",
    ),
    "a cut piece of a large payload": (
        lambda d: d.put(IX, keys.PIECES + place_of(d.ids["large"]) + (2).to_bytes(4, "big"), b"short"),
        "acme/jobs {large}",
        "or of the wrong size",
    ),
    "a changed piece of a large payload": (
        lambda d: d.put(
            IX, (key := keys.PIECES + place_of(d.ids["large"]) + (2).to_bytes(4, "big")), b"!" * len(d.get(IX, key))
        ),
        "acme/jobs {large}",
        "its payload is damaged",
    ),
    "a piece of a payload without its message": (
        lambda d: d.put(IX, keys.PIECES + keys.place(12345) + (0).to_bytes(4, "big"), b"piece"),
        "place 0000000000003039",
        "has pieces of a payload (ix c), but there is no such message",
    ),
    "a payload that a message has, marked as unfinished": (
        lambda d: d.put(IX, keys.STAGES + place_of(d.ids["large"]), b""),
        "place",
        "is a message's, but is marked as unfinished (ix u)",
    ),
    "a message that its group does not know": (
        lambda d: d.delete(IX, d.key_of(IX, keys.GROUPS + GROUPED, "idle 2")),
        "acme/grouped {idle 2}",
        "is missing in the order of its group (ix g)",
    ),
    "a message in the order of a group it is not in": (
        lambda d: d.put(IX, keys.GROUPS + GROUPED + keys.hashed("other") + d.ids["idle 1"] + bytes(9), b""),
        "acme/grouped {idle 1}",
        "the order of its group (ix g) has an entry that does not agree",
    ),
    "a message of a group that no count of the oldest finds": (
        lambda d: d.delete(IX, d.key_of(IX, keys.GROUP_VISIBLE + GROUPED, "idle 2")),
        "acme/grouped {idle 2}",
        "is missing in the index of what is ready in groups (ix w)",
    ),
    "a group whose head does not stand in the queue": (
        lambda d: d.delete(VI, d.key_of(VI, GROUPED, "idle 1")),
        "acme/grouped {idle 1}",
        "is missing in the visibility index (vi)",
    ),
    "a message before which the head of its group stands": (
        lambda d: d.put(VI, keys.level(GROUPED, 50) + keys.instant(5) + d.ids["idle 2"], b""),
        "acme/grouped {idle 2}",
        "the visibility index (vi) has an entry that does not agree",
    ),
    "a message of a busy group in the order of delivery": (
        lambda d: d.put(VI, keys.level(GROUPED, 50) + keys.instant(5) + d.ids["busy 2"], b""),
        "acme/grouped {busy 2}",
        "the visibility index (vi) has an entry that does not agree",
    ),
    "a busy group that counts as free": (
        lambda d: d.delete(IX, keys.BUSY + GROUPED + keys.hashed("busy")),
        "acme/grouped",
        f"group {keys.hashed('busy').hex()} counts 0 in flight (ix b), a full scan finds 2",
    ),
    "a free group that counts as busy": (
        lambda d: d.put(IX, keys.BUSY + GROUPED + keys.hashed("idle"), (1).to_bytes(4, "big")),
        "acme/grouped",
        f"group {keys.hashed('idle').hex()} counts 1 in flight (ix b), a full scan finds 0",
    ),
    "an idempotency key that is never forgotten": (
        lambda d: [d.delete(IX, key) for key in d.keys(IX, keys.SEEN_ENDS) if key.endswith(b"order-7")],
        "acme/jobs",
        "idempotency key b'order-7' (ix i) has no end (ix e)",
    ),
    "an end of an idempotency key that is not there": (
        lambda d: d.delete(IX, keys.SEEN + JOBS + b"order-7"),
        "acme/jobs",
        "idempotency key b'order-7' has an end (ix e), but is not there",
    ),
    "an idempotency key that ends too early": (
        lambda d: d.put(IX, keys.SEEN_ENDS + keys.instant(1 << 50) + JOBS + b"order-7", b""),
        "acme/jobs",
        "idempotency key b'order-7' has an end (ix e) after its own",
    ),
    "a damaged idempotency key": (
        lambda d: d.put(IX, keys.SEEN + JOBS + b"order-7", b"?"),
        "acme/jobs",
        "idempotency key b'order-7' (ix i) is damaged",
    ),
    "an idempotency key of a message that never was": (
        lambda d: d.put(IX, (key := keys.SEEN + JOBS + b"order-7"), b"\x7f" + d.get(IX, key)[1:]),
        "acme/jobs",
        "names a message that was never given an id",
    ),
    "a damaged claim of a ledger": (
        lambda d: [d.put(IX, key, b"\xc1") for key in d.keys(IX, keys.LEDGER + OTHER)],
        "globex/other",
        f"claim 7 of ledger {keys.hashed('spark').hex()} (ix l) is damaged",
    ),
    "an open claim under a closed number of a ledger": (
        lambda d: d.put(IX, keys.CLOSED + OTHER + keys.hashed("spark"), keys.instant(7)),
        "globex/other",
        f"claim 7 of ledger {keys.hashed('spark').hex()} (ix l) is open, but was closed",
    ),
    "an index of no known kind": (
        lambda d: d.put(IX, b"z" + JOBS, b""),
        "",
        "the indexes have a key of no known kind",
    ),
    "a message above the highest id": (
        lambda d: d.put(DIRECTORY, keys.META + b"highest id", keys.instant(5)),
        "acme/jobs {ready}",
        "its id is above the highest that was given, 5",
    ),
    "a fact that cannot be read": (
        lambda d: d.put(DIRECTORY, keys.META + b"node", b"?"),
        "",
        "the fact b'node' of the store is unknown or damaged",
    ),
    "a key of no known kind in the directory": (
        lambda d: d.put(DIRECTORY, b"z/what", b""),
        "",
        "the directory has a key of no known kind",
    ),
    "messages of a queue that is not there": (
        lambda d: d.put(M, GONE + d.ids["ready"], d.get(M, JOBS + d.ids["ready"])),
        "acme/gone",
        "is not in the directory, but 'm' has entries of it",
    ),
    "an index of a queue that never was": (
        lambda d: d.put(IX, keys.DEAD + keys.prefix(9, 9) + d.ids["ready"], b""),
        "tenant 00000009 queue 00000009",
        "is not in the directory, but 'ix d' has entries of it",
    ),
    "counters of a queue that is not there": (
        lambda d: d.put(DIRECTORY, keys.COUNTERS + GONE, d.get(DIRECTORY, keys.COUNTERS + JOBS)),
        "acme/gone",
        "has counters, but is not in the directory",
    ),
    "damaged counters": (
        lambda d: d.put(DIRECTORY, keys.COUNTERS + JOBS, b"?"),
        "acme/jobs",
        "its counters are damaged",
    ),
    "a queue whose number could be given again": (
        lambda d: d.delete(DIRECTORY, keys.QUEUE_NAMES + JOBS),
        "acme/jobs",
        "number 1 is not in the list of names ever given",
    ),
    "two queues of one number": (
        lambda d: d.put(
            DIRECTORY,
            keys.QUEUES + JOBS[:4] + b"twin",
            d.get(DIRECTORY, keys.QUEUES + JOBS[:4] + b"jobs").replace(b"\xa4jobs", b"\xa4twin"),
        ),
        "acme/twin",
        "shares its number with acme/jobs",
    ),
    "a queue under another's name": (
        lambda d: d.move(DIRECTORY, keys.QUEUES + JOBS[:4] + b"jobs", keys.QUEUES + JOBS[:4] + b"sboj"),
        "acme/jobs",
        "the directory has it under",
    ),
    "two tenants of one number": (
        lambda d: d.put(
            DIRECTORY, keys.TENANTS + b"acmf", d.get(DIRECTORY, keys.TENANTS + b"acme").replace(b"acme", b"acmf")
        ),
        "",
        "tenants 'acme' and 'acmf' share number 1",
    ),
    "a tenant that is gone": (
        lambda d: d.delete(DIRECTORY, keys.TENANTS + b"acme"),
        "acme/jobs",
        "its tenant has not the number 1",
    ),
    "a damaged queue": (
        lambda d: d.put(DIRECTORY, keys.QUEUES + JOBS[:4] + b"jobs", b"\xc1"),
        "",
        "is damaged",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(made: Made, kind: str) -> None:
    damage, where, what = DAMAGE[kind]
    for name, id16 in made.ids.items():
        where = where.replace(f"{{{name}}}", str_of(id16))

    violations = damaged(made, damage)

    assert any(each.startswith(where) and what in each for each in violations), violations


@pytest.mark.parametrize("name", ["ready", "delayed", "in_flight", "failed", "kept", "bytes"])
def test_a_counter_that_a_full_scan_does_not_confirm_is_named(made: Made, name: str) -> None:
    at = ("ready", "delayed", "in_flight", "failed", "kept", "bytes").index(name) * 8

    def damage(damager: Damager) -> None:
        raw = damager.get(DIRECTORY, keys.COUNTERS + JOBS)
        more = keys.instant(keys.parse_instant(raw[at:]) + 1)
        damager.put(DIRECTORY, keys.COUNTERS + JOBS, raw[:at] + more + raw[at + 8 :])

    [violation] = damaged(made, damage)

    assert violation.startswith(f"acme/jobs: its counters say {name} ")


# --- The journal -----------------------------------------------------------------------------------------------


def test_a_gap_in_the_journal_is_named(made: Made) -> None:
    def damage(damager: Damager) -> None:
        damager.delete(JR, damager.keys(JR, b"\0")[3])

    assert any("the journal has a gap" in each for each in damaged(made, damage))


def test_a_block_of_the_journal_that_lost_an_event_is_named(made: Made) -> None:
    def damage(damager: Damager) -> None:
        key, rows = damager.first_block()
        damager.put(JR, key, msgspec.msgpack.encode([*rows, rows[-1]]))

    assert any("the journal has an overlap" in each for each in damaged(made, damage))


def test_a_damaged_block_of_the_journal_is_named(made: Made) -> None:
    violations = damaged(made, lambda damager: damager.put(JR, damager.first_block()[0], b"\xc1"))

    assert any("the journal's block at 1 is damaged" in each for each in violations)


@pytest.mark.parametrize(
    ("column", "value", "said"), [(0, keys.prefix(9, 9), "is of no known queue"), (2, 99, "is of no known kind")]
)
def test_an_event_of_no_known_queue_or_kind_is_named(made: Made, column: int, value: object, said: str) -> None:
    def damage(damager: Damager) -> None:
        key, [row, *rest] = damager.first_block()
        row[column] = value
        damager.put(JR, key, msgspec.msgpack.encode([row, *rest]))

    assert any(f"the journal's event 1 {said}" in each for each in damaged(made, damage))


def _forget_message(damager: Damager, name: str) -> None:
    """Take every trace of a message of `jobs` but its events."""
    spaces = [(family, JOBS) for family in (M, VI, LI, LE)]
    spaces += [(IX, space) for space in (*keys.PER_QUEUE_SPACES, keys.TTLS, keys.KEPT)]
    for family, space in spaces:
        for key in damager.keys(family, space):
            if damager.ids[name] in key:
                damager.delete(family, key)


@pytest.mark.parametrize(("name", "event"), [("ready", "enqueued"), ("in flight", "extended"), ("failed", "failed")])
def test_a_message_that_the_journal_has_and_the_store_lost_is_named(made: Made, name: str, event: str) -> None:
    violations = damaged(made, lambda damager: _forget_message(damager, name))

    said = f"acme/jobs {str_of(made.ids[name])}: its last event in the journal is {event}, but it is not there"
    assert said in violations


@pytest.mark.parametrize("name", ["removed", "idle 0"])
def test_a_message_that_came_back_after_its_end_is_named(made: Made, name: str) -> None:
    p, queue, event = (JOBS, "acme/jobs", "removed") if name == "removed" else (GROUPED, "acme/grouped", "succeeded")

    violations = damaged(made, lambda d: d.put(M, p + d.ids[name], d.get(M, JOBS + d.ids["urgent"])))

    assert f"{queue} {str_of(made.ids[name])}: its last event in the journal is {event}, but it is ready" in violations


def test_a_version_that_the_journal_does_not_know_is_named(made: Made) -> None:
    violations = damaged(made, lambda d: d.change_life(LE, JOBS + d.ids["in flight"], version=9))

    said = "its last event in the journal is of version 1, but it has version 9"
    assert f"acme/jobs {str_of(made.ids['in flight'])}: {said}" in violations


def test_a_message_that_never_was_in_the_journal_is_named(made: Made) -> None:
    # The same millisecond and node, a sequence that was not reached.
    stranger = to_bytes(keys.parse_id(made.ids["urgent"]) + 3_000)

    violations = damaged(made, lambda d: d.put(M, JOBS + stranger, d.get(M, JOBS + d.ids["urgent"])))

    said = f"acme/jobs {str_of(stranger)}: is not in the journal, which has what came before it"
    assert said in violations


def test_a_message_in_another_queue_than_its_last_event_is_named(made: Made) -> None:
    violations = damaged(made, lambda d: d.put(M, GROUPED + d.ids["ready"], d.get(M, JOBS + d.ids["ready"])))

    said = f"acme/grouped {str_of(made.ids['ready'])}: its last event in the journal is of queue acme/jobs"
    assert said in violations


def test_a_long_journal_is_read_in_shares_with_the_same_result(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_journal, "_EVENTS_PER_PASS", 10)

    assert verify(made.path).is_clean
    assert any("it is not there" in each for each in damaged(made, lambda d: _forget_message(d, "ready")))


def test_messages_from_before_the_journals_beginning_need_no_event(made: Made) -> None:
    def trim(damager: Damager) -> None:
        for key in damager.keys(JR, b"\0")[:-2]:
            damager.delete(JR, key)

    assert damaged(made, trim) == []


# --- The whole -------------------------------------------------------------------------------------------------


def test_a_store_used_in_every_way_verifies_clean(healthy: Made) -> None:
    steps: list[tuple[str, int, int]] = []

    report = verify(healthy.path, lambda what, done, total: steps.append((what, done, total)))

    assert [str(each) for each in report.violations] == []
    assert report.is_clean
    assert (report.tenants, report.queues, report.messages) == (2, 3, 24)
    assert (report.ready, report.delayed, report.in_flight, report.failed, report.succeeded) == (17, 3, 4, 2, 1)
    assert report.events == 65
    assert steps[-1][0] == "journal"
    assert ("messages", 24, 24) in steps


def test_verifying_changes_nothing(made: Made) -> None:
    first = verify(made.path)

    assert verify(made.path) == first


def test_of_very_many_violations_some_are_listed_and_all_are_counted(made: Made) -> None:
    damager = Damager(made)
    for number in range(1, 301):
        damager.put(LE, JOBS + to_bytes(number), b"")
    damager.close()

    report = verify(made.path)

    assert (report.violation_count, len(report.violations)) == (300, 200)


def test_what_is_no_store_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="holds no store"):
        verify(tmp_path / "nothing")
    with pytest.raises(InvalidArgument, match="holds no store"):
        verify(tmp_path)
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(InvalidArgument, match="is not a store"):
        verify(tmp_path)

    assert [each.name for each in tmp_path.iterdir()] == ["note.txt"]


def test_a_store_in_use_is_refused_with_its_owner_and_what_to_do(made: Made) -> None:
    database = Database(made.path)
    try:
        with pytest.raises(StoreUnavailable, match="holdfast backup") as refused:
            verify(made.path)
    finally:
        database.close()

    assert "pid" in refused.value.facts


def test_a_damaged_file_ends_one_check_and_is_named(made: Made) -> None:
    database = Database(made.path)
    database.close()
    tables = sorted((made.path / "db").glob("*.sst"), key=lambda each: each.stat().st_size)
    raw = bytearray(tables[-1].read_bytes())
    raw[1_000] ^= 0xFF
    tables[-1].write_bytes(raw)

    report = verify(made.path)

    assert any("cannot be read to the end" in str(each) for each in report.violations), report.violations
