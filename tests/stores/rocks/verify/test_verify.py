"""A store that was used in every way verifies clean; each kind of damage is named."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.model.ids import to_bytes
from holdfast.stores.rocks import keys
from holdfast.stores.values import QueueRow
from tests.stores.rocks.made_store import (
    DIRECTORY,
    GONE,
    GROUPED,
    IX,
    JOBS,
    LE,
    LI,
    OTHER,
    VI,
    Damager,
    M,
    Made,
    blob_id_of,
    copy_made,
    damaged,
    make_healthy,
    str_of,
)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_healthy(tmp_path_factory.mktemp("verify") / "store")


@pytest.fixture
def made(healthy: Made, tmp_path: Path) -> Made:
    return copy_made(healthy, tmp_path / "store")


# What is done to one index or record of the message, the message, and what must be said of it.
DAMAGE: dict[str, tuple[Callable[[Damager], None], str, str]] = {
    "a ready message that no claim would find": (
        lambda d: d.delete(VI, d.key_of(VI, JOBS, "urgent")),
        "acme/jobs {urgent}",
        "is missing from the visibility index (vi)",
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
        "is missing from the visibility index (vi)",
    ),
    "a lease that would never run out": (
        lambda d: d.delete(LI, d.key_of(LI, JOBS, "in flight")),
        "acme/jobs {in flight}",
        "is missing from the lease expiry index (li)",
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
        "succeeded and must not be kept",
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
        "is missing from the index of dead letters (ix d)",
    ),
    "a dead letter that is not failed": (
        lambda d: d.put(IX, keys.DEAD + JOBS + d.ids["ready"], b""),
        "acme/jobs {ready}",
        "the index of dead letters (ix d) has an entry that does not agree",
    ),
    "a delayed message that is not counted as delayed": (
        lambda d: d.delete(IX, d.key_of(IX, keys.DELAYED + JOBS, "delayed")),
        "acme/jobs {delayed}",
        "is missing from the index of delayed messages (ix v)",
    ),
    "a due message that is counted as delayed": (
        lambda d: d.put(IX, keys.DELAYED + JOBS + keys.instant(5) + d.ids["ready"], b""),
        "acme/jobs {ready}",
        "the index of delayed messages (ix v) has an entry that does not agree",
    ),
    "a TTL that would never end": (
        lambda d: d.delete(IX, d.key_of(IX, keys.TTLS, "ttl")),
        "acme/jobs {ttl}",
        "is missing from the TTL index (ix t)",
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
        "is missing from the index of kept successes (ix k)",
    ),
    "an end of keeping without its message": (
        lambda d: d.put(IX, keys.KEPT + keys.instant(5) + JOBS + to_bytes(12345), b""),
        "acme/jobs",
        "the index of kept successes (ix k) has an entry, but there is no such message",
    ),
    "a state document that is gone": (
        lambda d: d.delete(IX, keys.STATES + JOBS + d.ids["retried"]),
        "acme/jobs {retried}",
        "its life says that it has a state document, but there is none",
    ),
    "a state document that its message knows nothing of": (
        lambda d: d.put(IX, keys.STATES + JOBS + d.ids["ready"], msgspec.msgpack.encode({})),
        "acme/jobs {ready}",
        "its life says that it has no state document, but there is one",
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
        lambda d: d.delete(IX, keys.PIECES + blob_id_of(d.ids["large"]) + (2).to_bytes(4, "big")),
        "acme/jobs {large}",
        "its payload has 5 of 6 pieces (ix c)",
    ),
    "a cut piece of a large payload": (
        lambda d: d.put(IX, keys.PIECES + blob_id_of(d.ids["large"]) + (2).to_bytes(4, "big"), b"short"),
        "acme/jobs {large}",
        "or pieces of the wrong size",
    ),
    "a changed piece of a large payload": (
        lambda d: d.put(
            IX, (key := keys.PIECES + blob_id_of(d.ids["large"]) + (2).to_bytes(4, "big")), b"!" * len(d.get(IX, key))
        ),
        "acme/jobs {large}",
        "its payload is damaged",
    ),
    "a piece of a payload without its message": (
        lambda d: d.put(IX, keys.PIECES + keys.pack_blob_id(12345) + (0).to_bytes(4, "big"), b"piece"),
        "blob 0000000000003039",
        "has pieces (ix c), but belongs to no message",
    ),
    "a payload that a message has, marked as unfinished": (
        lambda d: d.put(IX, keys.STAGES + blob_id_of(d.ids["large"]), b""),
        "blob",
        "is of a message, but marked as unfinished (ix u)",
    ),
    "a message that its group does not know": (
        lambda d: d.delete(IX, d.key_of(IX, keys.GROUPS + GROUPED, "idle 2")),
        "acme/grouped {idle 2}",
        "is missing from the order of its group (ix g)",
    ),
    "a message in the order of a group it is not in": (
        lambda d: d.put(IX, keys.GROUPS + GROUPED + keys.hashed("other") + d.ids["idle 1"] + bytes(9), b""),
        "acme/grouped {idle 1}",
        "the order of its group (ix g) has an entry that does not agree",
    ),
    "a message of a group that no count of the oldest finds": (
        lambda d: d.delete(IX, d.key_of(IX, keys.GROUP_VISIBLE + GROUPED, "idle 2")),
        "acme/grouped {idle 2}",
        "is missing from the index of ready messages in groups (ix w)",
    ),
    "a group whose head does not stand in the queue": (
        lambda d: d.delete(VI, d.key_of(VI, GROUPED, "idle 1")),
        "acme/grouped {idle 1}",
        "is missing from the visibility index (vi)",
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
        "idempotency key b'order-7' has an end (ix e), but does not exist",
    ),
    "an idempotency key that ends too early": (
        lambda d: d.put(IX, keys.SEEN_ENDS + keys.instant(1 << 50) + JOBS + b"order-7", b""),
        "acme/jobs",
        "idempotency key b'order-7' has an end (ix e) later than its own",
    ),
    "a damaged idempotency key": (
        lambda d: d.put(IX, keys.SEEN + JOBS + b"order-7", b"?"),
        "acme/jobs",
        "idempotency key b'order-7' (ix i) is damaged",
    ),
    "an idempotency key of a message that never was": (
        lambda d: d.put(IX, (key := keys.SEEN + JOBS + b"order-7"), b"\x7f" + d.get(IX, key)[1:]),
        "acme/jobs",
        "names a message with an id that was never given",
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
    "an index of an unknown kind": (
        lambda d: d.put(IX, b"z" + JOBS, b""),
        "",
        "the indexes have a key of an unknown kind",
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
    "a key of an unknown kind in the directory": (
        lambda d: d.put(DIRECTORY, b"z/what", b""),
        "",
        "the directory has a key of an unknown kind",
    ),
    "a queue being deleted that its index has not": (
        lambda d: d.put(
            DIRECTORY,
            (key := keys.QUEUES + JOBS[:4] + b"jobs"),
            msgspec.msgpack.encode(
                msgspec.structs.replace(msgspec.msgpack.decode(d.get(DIRECTORY, key), type=QueueRow), drain_until=1_000)
            ),
        ),
        "acme/jobs",
        "is missing from the index of queues being deleted (d/)",
    ),
    "a queue in the index of limits that has none": (
        lambda d: d.put(DIRECTORY, keys.LIMITED + JOBS, b""),
        "acme/jobs",
        "is in the index of queues with limits (l/), but must not be",
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
        "its tenant does not have the number 1",
    ),
    "a damaged queue": (
        lambda d: d.put(DIRECTORY, keys.QUEUES + JOBS[:4] + b"jobs", b"\xc1"),
        "",
        "is damaged",
    ),
}


@pytest.mark.spec("4.8")
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(made: Made, kind: str) -> None:
    damage, where, what = DAMAGE[kind]
    for name, id16 in made.ids.items():
        where = where.replace(f"{{{name}}}", str_of(id16))

    violations = damaged(made, damage)

    assert any(each.startswith(where) and what in each for each in violations), violations


@pytest.mark.spec("4.8")
@pytest.mark.parametrize("name", ["ready", "delayed", "in_flight", "failed", "kept", "bytes"])
def test_a_counter_that_a_full_scan_does_not_confirm_is_named(made: Made, name: str) -> None:
    at = ("ready", "delayed", "in_flight", "failed", "kept", "bytes").index(name) * 8

    def damage(damager: Damager) -> None:
        raw = damager.get(DIRECTORY, keys.COUNTERS + JOBS)
        more = keys.instant(keys.parse_instant(raw[at:]) + 1)
        damager.put(DIRECTORY, keys.COUNTERS + JOBS, raw[:at] + more + raw[at + 8 :])

    [violation] = damaged(made, damage)

    assert violation.startswith(f"acme/jobs: its counters say {name} ")
