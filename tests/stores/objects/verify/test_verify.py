"""`verify` of an object store: a used store is clean, each kind of damage is named, remains of a crash are none."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.client.client import AsyncHoldfast
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import NewMessage
from holdfast.model.names import QueueRef
from holdfast.stores.findings import Report
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.bucket import StoredObject
from holdfast.stores.objects.buckets.disk import DiskBucket
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.document_format import encode_document
from holdfast.stores.objects.documents.protobuf_mapping import decode_message, encode
from holdfast.stores.objects.verify.reader import VerifyReader
from holdfast.stores.objects.verify.store import verify_bucket
from holdfast.testing import EmbeddedSubject, ManualClock

WEEK_MS = 7 * 86_400_000
QUEUE = QueueRef("acme", "mail")

# A payload that is an object of its own.
LARGE = b"large" * 4_000


class Lived:
    """A store that had something of everything, at rest."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_ms = 0
        self.ids: dict[str, int] = {}

    def path(self, key: str) -> Path:
        return self.root / key

    def message(self, name: str, *, dead: bool = False) -> str:
        return layout.message(QUEUE, self.ids[name], dead=dead)

    async def verify(self) -> Report:
        return await verify_bucket(DiskBucket(self.root, syncs=False), ManualClock(self.now_ms), pause_ms=0)

    async def rewrite(self, key: str, change: Callable[..., object]) -> None:
        """Change the body of a document, with a valid checksum."""
        body = await VerifyReader(DiskBucket(self.root, syncs=False), ManualClock()).read_document(key)
        assert body is not None
        raw, _ = encode_document(encode(change(decode_message(body))))
        self.path(key).write_bytes(raw)


async def _live(hf: AsyncHoldfast, subject: EmbeddedSubject, lived: Lived) -> None:
    await hf.tenant("acme").set(quotas={"max_messages": 100})
    q = hf.queue("mail", tenant="acme")
    names = ["ready", "grouped", "flying", "dead", "acked"]
    lived.ids["dead"] = (await q.enqueue(LARGE, priority=1))[0].snowflake
    [dead] = await q.claim(lease=60, state=True)
    await dead.save_state({"step": 1})
    await dead.nack("no", final=True)
    await hf.journal()
    lived.ids["flying"] = (await q.enqueue("flying", priority=1, key="k"))[0].snowflake
    [flying] = await q.claim(lease=3_600, state=True)
    await flying.save_state({"at": 2})
    lived.ids["acked"] = (await q.enqueue("acked", priority=1))[0].snowflake
    [acked] = await q.claim(lease=60)
    await acked.ack()
    made = await q.enqueue([NewMessage(LARGE), NewMessage("grouped", group="g"), NewMessage("late", delay=60)])
    lived.ids.update(zip(["ready", "grouped", "late"], (each.snowflake for each in made), strict=True))
    await hf.queue("ordered", tenant="acme").enqueue("first", group="g")
    assert await hf.queue("ordered", tenant="acme").claim(lease=3_600)
    await hf.queue("fed", tenant="acme").enqueue("fed")
    assert await hf.queue("fed", tenant="acme").claim(lease=3_600, ledger=("consumer", 0))
    await q.schedule("nightly", cron="0 3 * * *", payload={})
    await hf.queue("other", tenant="acme").enqueue("elsewhere")
    assert set(names) <= set(lived.ids)
    await subject.sweep(hf)
    await hf.journal()


@pytest.fixture
async def lived(tmp_path: Path) -> Lived:
    store = Lived(tmp_path / "bucket")
    bucket = DiskBucket(store.root, syncs=False)
    subject = EmbeddedSubject(lambda dice: ObjectStore(bucket, dice, journal_retention_ms=WEEK_MS, watches=False))
    async with subject.open() as hf:
        await _live(hf, subject, store)
    store.now_ms = subject.clock.now_ms()
    return store


async def test_a_store_that_lived_is_clean_and_counted(lived: Lived) -> None:
    report = await lived.verify()

    assert report.violations == []
    assert (report.ready, report.delayed, report.in_flight, report.failed) == (4, 1, 3, 1)
    assert (report.tenants, report.queues) == (1, 4)
    assert report.events > 10
    assert report.unfinished == 0


async def _damage(lived: Lived, kind: str) -> None:
    match kind:
        case "no payload":
            lived.path(layout.payload_of(lived.message("ready"))).unlink()
        case "short payload":
            lived.path(layout.payload_of(lived.message("ready"))).write_bytes(b"x")
        case "other payload":
            path = lived.path(layout.payload_of(lived.message("dead", dead=True)))
            path.write_bytes(bytes(len(path.read_bytes())))
        case "short payload inside":
            await lived.rewrite(lived.message("flying"), lambda body: replace(body, payload=b"x"))
        case "other payload inside":
            await lived.rewrite(lived.message("flying"), lambda body: replace(body, payload=bytes(body.size)))
        case "rotten metadata":
            path = lived.path(lived.message("ready"))
            raw = bytearray(path.read_bytes())
            raw[-3] ^= 1
            path.write_bytes(raw)
        case "lost metadata":
            lived.path(lived.message("flying")).unlink()
        case "twice":
            for of in (lambda key: key, layout.payload_of, layout.state_of):
                key = of(lived.message("dead"))
                shutil.copy(lived.path(of(lived.message("dead", dead=True))), lived.path(key))
        case "a lease of nobody":
            await lived.rewrite(
                lived.message("flying"), lambda body: replace(body, life=replace(body.life, lease=None))
            )
        case "another's id":
            await lived.rewrite(lived.message("ready"), lambda body: replace(body, id=body.id + 1))
        case "version back":
            await lived.rewrite(lived.message("flying"), lambda body: replace(body, life=replace(body.life, version=0)))
        case "no marker":
            lived.path(layout.group_member(QUEUE, "g", lived.ids["grouped"])).unlink()
        case "rotten state":
            lived.path(layout.state_of(lived.message("flying"))).write_text("{")
        case "foreign":
            lived.path("acme/q/mail/notes.txt").write_text("mine")
        case "foreign beside":
            lived.path("acme/holiday.jpg").write_text("mine")
        case "no segment":
            segments = sorted((lived.root / ".holdfast/journal").iterdir())
            assert len(segments) > 2
            segments[1].unlink()
        case "unlisted queue":
            shutil.copytree(lived.path("acme/q/mail"), lived.path("acme/q/copy"))
        case "rotten policy":
            lived.path(layout.policy(QUEUE)).write_text("{}")
        case "rotten room":
            lived.path(layout.quota_guard("acme")).write_bytes(b"HF")
        case "rotten schedule":
            path = lived.path(layout.schedule(QUEUE, "nightly"))
            path.rename(path.with_name("daily.pb"))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("no payload", "its payload is missing"),
        ("short payload", "its payload has 1 bytes instead of 20000"),
        ("short payload inside", "its payload has 1 bytes instead of 8"),
        ("other payload inside", "its payload is damaged (wrong checksum)"),
        ("other payload", "its payload is damaged (wrong checksum)"),
        ("rotten metadata", "is damaged"),
        ("lost metadata", "its last event in the journal is claimed, but it does not exist"),
        ("twice", "is in two places"),
        ("a lease of nobody", "is in_flight, but has no lease"),
        ("another's id", ", but its id is"),
        ("version back", "its last event in the journal is of version 1, but it has version 0"),
        ("no marker", "is not among the messages of its group"),
        ("rotten state", "is damaged"),
        ("foreign", "notes.txt is of no known kind"),
        ("foreign beside", "holiday.jpg is of no known kind"),
        ("no segment", "the journal has a gap"),
        ("unlisted queue", "its tenant does not list it"),
        ("rotten policy", "is damaged"),
        ("rotten room", "acme/room.pb is damaged"),
        ("rotten schedule", "schedule 'nightly' is stored under 'daily'"),
    ],
)
async def test_each_kind_of_damage_is_named(lived: Lived, kind: str, said: str) -> None:
    await _damage(lived, kind)

    report = await lived.verify()

    assert said in " | ".join(map(str, report.violations))


# Kinds of documents, by their keys; a lost one is found, or docs/stores/objects.md says why it cannot be.
ID = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
KINDS = {
    "tenants.json": r"\.holdfast/tenants\.json",
    "journal.json": r"\.holdfast/journal\.json",
    "step": r"\.holdfast/step/.+\.pb",
    "node": r"\.holdfast/node/\d+\.pb",
    "segment": r"\.holdfast/journal/\d+\.pb",
    "tenant.json": r"[^/]+/tenant\.json",
    "room.pb": r"[^/]+/room\.pb",
    "policy.json": r".+/policy\.json",
    "metadata": rf".+/msg/{ID}\.pb",
    "payload": rf".+/msg/{ID}\.bin",
    "state": rf".+/state/{ID}\.json",
    "key": r".+/key/\w+\.pb",
    "group batch": r".+/group/\w+\.pb",
    "group member": r".+/group/\w+/\d+",
    "ledger": r".+/ledger/\w+\.pb",
    "schedule": r".+/schedule/\w+\.pb",
}
# Nothing else proves that they were there.
UNPROVABLE = {"room.pb", "step", "key", "ledger", "schedule"}


async def test_every_lost_document_is_found_or_the_page_says_why_it_cannot_be(lived: Lived, tmp_path: Path) -> None:
    found: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    for path in sorted(each for each in lived.root.rglob("*") if each.is_file()):
        key = path.relative_to(lived.root).as_posix()
        if key.startswith((".holdfast/lock/", ".holdfast/new/")):
            continue
        [kind] = [kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, key)]
        path.rename(tmp_path / "lost")
        is_first_segment = kind == "segment" and key.endswith("0001.pb")
        if not is_first_segment:  # looks like one whose retention is over
            violations = (await lived.verify()).violations
            found[kind].append(bool(violations))
            assert violations or kind in UNPROVABLE, f"nobody misses {key}"
        (tmp_path / "lost").rename(path)
    assert all(found.values()), "the store has none of some kind: this test tests nothing there"
    assert {kind for kind, each in found.items() if not all(each)} <= UNPROVABLE
    page = (Path(__file__).parents[4] / "docs/stores/objects.md").read_text()
    section = page[page.index("### Losses that cannot be found") :]
    for word in ("room.pb", "idempotency key", "claim ledger", "schedule", "oldest", "without messages", "step"):
        assert word in section


async def test_a_lost_policy_is_found_and_its_messages_are_counted(lived: Lived) -> None:
    lived.path(layout.policy(QUEUE)).unlink()

    report = await lived.verify()

    assert f"its policy is missing: {layout.policy(QUEUE)}" in " | ".join(map(str, report.violations))
    assert (report.ready, report.in_flight, report.failed) == (4, 3, 1)


async def test_a_lost_policy_of_a_queue_that_is_empty_is_found_by_its_events(lived: Lived) -> None:
    shutil.rmtree(lived.path("acme/q/other"))

    report = await lived.verify()

    assert "acme/q/other/policy.json" in " | ".join(map(str, report.violations))


@pytest.mark.parametrize("name", ["dead", "flying"])
async def test_a_lost_state_document_is_found(lived: Lived, name: str) -> None:
    key = layout.state_of(lived.message(name, dead=name == "dead"))
    lived.path(key).unlink()

    report = await lived.verify()

    assert f"its state document is missing: {key}" in " | ".join(map(str, report.violations))


async def test_a_state_document_that_was_never_recorded_as_written_is_not_missed(lived: Lived) -> None:
    """The message comes from an older version, or its writer died before the record."""
    key = lived.message("flying")
    await lived.rewrite(key, lambda body: replace(body, is_state_written=False))
    lived.path(layout.state_of(key)).unlink()

    assert (await lived.verify()).violations == []


async def test_a_queue_whose_maker_died_before_its_policy_is_no_damage(lived: Lived) -> None:
    path = lived.path(layout.tenant("acme"))
    tenant = json.loads(path.read_text())
    tenant["queues"]["half"] = tenant["next_queue_id"]
    tenant["next_queue_id"] += 1
    path.write_text(json.dumps(tenant))

    assert (await lived.verify()).violations == []


async def test_remains_of_a_crash_are_distinguished_from_damage(lived: Lived) -> None:
    orphan = lived.ids["ready"] + (1 << 30)
    lived.path(layout.payload_of(layout.message(QUEUE, orphan))).write_bytes(b"half")
    lived.path(layout.state_of(layout.message(QUEUE, orphan))).write_text("{}")
    lived.path(layout.group_member(QUEUE, "g", orphan)).write_bytes(b"")
    left = (await lived.verify()).leftovers
    # A step that was never decided: what was there before holds.
    key = lived.message("ready")
    prior = await VerifyReader(DiskBucket(lived.root, syncs=False), ManualClock()).read_document(key)
    assert prior is not None
    raw, _ = encode_document(b"", None, step=f"{layout.pad_id(1)}-00", prior=prior)
    lived.path(key).write_bytes(raw)

    report = await lived.verify()

    assert report.violations == []
    assert (report.unfinished, report.unfinished_bytes) == (1, 4)
    assert report.ready == 4
    assert left >= 2


class Restless(DiskBucket):
    """Something is done before each read."""

    def __init__(self, root: Path, before: Callable[[str], Awaitable[None]]) -> None:
        super().__init__(root, syncs=False)
        self._before = before

    async def read(self, key: str) -> StoredObject:
        await self._before(key)
        return await super().read(key)


async def test_a_message_that_goes_back_and_forth_under_the_eyes_of_verify_is_in_one_place(tmp_path: Path) -> None:
    bucket = DiskBucket(tmp_path / "bucket", syncs=False)
    subject = EmbeddedSubject(lambda dice: ObjectStore(bucket, dice, journal_retention_ms=WEEK_MS, watches=False))
    moves = Counter[bool]()
    async with subject.open() as hf:
        q = hf.queue("mail", tenant="acme")
        [id] = await q.enqueue("restless")
        places = {layout.message(QUEUE, id.snowflake, dead=dead): dead for dead in (False, True)}

        async def bring(key: str) -> None:
            """To wherever it is looked for."""
            dead = places.get(key)
            if dead is None or dead == bool((await q.stats()).failed):
                return
            moves[dead] += 1
            if dead:
                [message] = await q.claim(lease=60)
                await message.nack("no", final=True)
                await subject.sweep(hf)
            else:
                await q.redrive()
            await hf.journal()

        await bring(layout.message(QUEUE, id.snowflake, dead=True))
        report = await verify_bucket(Restless(bucket.root, bring), subject.clock, pause_ms=0)

    assert report.violations == []
    assert min(moves[False], moves[True]) >= 3


async def test_a_place_that_holds_no_store_is_refused_and_stays_empty(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="holds no store"):
        await verify_bucket(DiskBucket(tmp_path / "nothing", syncs=False), ManualClock())
    assert list(tmp_path.iterdir()) == []
