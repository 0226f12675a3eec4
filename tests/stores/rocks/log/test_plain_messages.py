"""Plain messages get keys only when they are needed, but every read sees them, even during a checkpoint."""

import shutil
import tempfile
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from random import Random
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from holdfast.model.message import BYTES, JSON, Draft, make_envelope
from holdfast.model.policy import QueuePolicy
from holdfast.model.rules import lifecycle
from holdfast.stores.formats.message_record import encode_bare_messages, encode_message
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine import layers, rocks_writes
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.engine.layers import Layer
from holdfast.stores.rocks.engine.reads import MergedReads
from holdfast.stores.rocks.offline.read_only import ReadOnlyStore
from holdfast.stores.rocks.queues import plain_messages
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from tests.crash.rocks import copy_store
from tests.stores.rocks.log.database_ends import mark_as_killed, sync

FAMILIES = sorted(plain_messages.FAMILIES)
QUEUES = (keys.prefix(1, 1), keys.prefix(1, 2))
NOW_MS = 1_800_000_000_000
DRAFTS = {
    "bytes": Draft(payload=b"one", content_type=BYTES),
    "JSON": Draft(payload=b'{"a": 1}', content_type=JSON),
    "a text": Draft(payload=b"text", content_type="text/plain"),
    "headers": Draft(payload=b"with headers", headers={"a": "b"}),
    "a priority": Draft(payload=b"", priority=3),
    "JSON of another type": Draft(payload=b"{}", content_type="application/x", is_json=True),
}

Items = dict[int, list[tuple[bytes, bytes]]]


class PlainMessagesMachine(RuleBasedStateMachine):
    """A state machine of batches, commits, checkpoints in slices, reads, kills and closings, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = [
            patch.object(rocks_writes, "_SLICE_KEYS", 2),
            patch.object(rocks_writes, "_SLICE_MESSAGES", 2),
            patch.object(layers, "_MAX_KEYLESS", 12),
        ]
        for each in self.patches:
            each.start()
        self.place = Path(tempfile.mkdtemp())
        self.messages: dict[int, StoredMessage] = {}
        self.committed: Items = {family: [] for family in FAMILIES}
        self.slices: Iterator[bool] | None = None
        self.last_id = 0
        self.now_ms = NOW_MS

    @initialize()
    def make(self) -> None:
        self.database = Database(self.place / "store")

    def teardown(self) -> None:
        self.end_checkpoint()
        self.commit()
        self.database.close()
        shutil.rmtree(self.place)
        for each in self.patches:
            each.stop()

    def expected(self) -> Items:
        found: Items = {family: [] for family in FAMILIES}
        for entry in self.messages.values():
            for family, key, value in plain_messages.iterate_keys(entry):
                found[family].append((key, value))
        return {family: sorted(items) for family, items in found.items()}

    def some(self, p: bytes, count: int, *, in_flight: bool, order: Random) -> list[StoredMessage]:
        """Return messages in any order, as a caller may name them."""
        every = [each for each in self.messages.values() if each.p == p and (each.life.lease is not None) is in_flight]
        order.shuffle(every)
        return every[:count]

    # --- Changes -----------------------------------------------------------------------------------------------

    @rule(p=st.sampled_from(QUEUES), draft=st.sampled_from(sorted(DRAFTS)), count=st.integers(1, 6))
    def add(self, p: bytes, draft: str, count: int) -> None:
        self.now_ms += 1
        drafts = [replace(DRAFTS[draft], payload=b"%d" % number) for number in range(count)]
        life = lifecycle.first_life(drafts[0], None, self.now_ms)
        fresh = []
        for each in drafts:
            self.last_id += 1
            envelope = make_envelope(each, self.last_id, self.now_ms)
            fresh.append(StoredMessage(p, envelope, life, keys.id_bytes(self.last_id), each.bytes))
        self.database.commit.add_plain(p, fresh, plain_messages.choose_form(drafts))
        self.messages |= {entry.envelope.id: entry for entry in fresh}

    @rule(p=st.sampled_from(QUEUES), count=st.integers(1, 6), order=st.randoms(use_true_random=False))
    def claim(self, p: bytes, count: int, order: Random) -> None:
        if entries := self.some(p, count, in_flight=False, order=order):
            self.now_ms += 1
            lives = [
                lifecycle.claim(each.life, QueuePolicy(), self.now_ms, token=b"t" * 16, lease_ms=1_000).life
                for each in entries
            ]
            self.database.commit.claim_plain(p, entries, [life for life in lives if life is not None])

    @rule(p=st.sampled_from(QUEUES), count=st.integers(1, 6), order=st.randoms(use_true_random=False))
    def finish(self, p: bytes, count: int, order: Random) -> None:
        if entries := self.some(p, count, in_flight=True, order=order):
            self.database.commit.finish_plain(p, entries)
            for each in entries:
                del self.messages[each.envelope.id]

    @rule(p=st.sampled_from(QUEUES), in_flight=st.booleans(), order=st.randoms(use_true_random=False))
    def change_in_another_way(self, p: bytes, in_flight: bool, order: Random) -> None:
        """Change messages one by one, as any change of a single message does: their keys are made first."""
        for entry in self.some(p, 1, in_flight=in_flight, order=order):
            self.database.commit.make_keys(entry)
            entry.envelope = replace(entry.envelope, payload=b"edited")
            record = encode_message(entry.envelope, entry.life)
            self.database.commit.put(entry.p + entry.id16, record, keys.MESSAGES)

    @rule()
    def commit(self) -> None:
        if not self.database.commit.is_empty:
            self.database.write()
        self.committed = self.expected()

    # --- Reads -------------------------------------------------------------------------------------------------

    @rule(family=st.sampled_from(FAMILIES))
    def read_a_family(self, family: int) -> None:
        assert list(self.database.items(family, b"", b"\xff" * 40)) == self.expected()[family]

    @rule(data=st.data())
    def read_a_key(self, data: st.DataObject) -> None:
        present = [(family, item) for family, items in self.expected().items() for item in items]
        if present:
            family, (key, value) = data.draw(st.sampled_from(present))
            assert self.database.get(family, key) == value
            assert self.database.floor(family, key) == key

    @invariant()
    def one_object_stands_for_each_message(self) -> None:
        for id, entry in self.messages.items():
            assert self.database.commit.keyless(id) in (None, entry)

    # --- Checkpoints and ends ----------------------------------------------------------------------------------

    @precondition(lambda self: self.slices is None)
    @rule()
    def begin_checkpoint(self) -> None:
        self.commit()
        sync(self.database)
        self.slices = self.database.write_slices(*self.database.begin_checkpoint())

    @precondition(lambda self: self.slices is not None)
    @rule()
    def write_slice(self) -> None:
        assert self.slices is not None
        if next(self.slices, "done") == "done":
            self.database.end_checkpoint()
            self.slices = None

    def end_checkpoint(self) -> None:
        while self.slices is not None:
            self.write_slice()

    @rule()
    def flush(self) -> None:
        self.database.flush()

    @rule()
    def kill(self) -> None:
        copy = copy_store(self.database.path, self.place / "copy")
        mark_as_killed(copy)
        read_only = ReadOnlyStore(copy)
        check(read_only, self.committed)
        read_only.close()
        recovered = Database(copy)
        check(recovered, self.committed)
        recovered.close()
        shutil.rmtree(copy)

    @rule()
    def close_and_open(self) -> None:
        self.end_checkpoint()
        self.commit()
        self.database.close()
        self.database = Database(self.place / "store")


def check(reads: MergedReads, expected: Items) -> None:
    for family, items in expected.items():
        assert list(reads.items(family, b"", b"\xff" * 40)) == items


TestPlainMessages = PlainMessagesMachine.TestCase
TestPlainMessages.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("content_type", [BYTES, JSON])
def test_records_made_together_are_those_made_one_by_one(content_type: str) -> None:
    drafts = [Draft(payload=payload, content_type=content_type, priority=7) for payload in (b"", b"1", b"x" * 300)]
    life = lifecycle.first_life(drafts[0], None, NOW_MS)
    one_by_one = [encode_message(make_envelope(draft, id, NOW_MS + 1), life) for id, draft in enumerate(drafts)]
    payloads = [draft.payload for draft in drafts]
    assert encode_bare_messages(payloads, content_type, NOW_MS + 1, life) == one_by_one


def test_parts_name_messages_in_the_order_of_the_call() -> None:
    """Consecutive ids are read faster, and some other orders look consecutive from their first and last id."""
    p, life = QUEUES[0], lifecycle.first_life(DRAFTS["bytes"], None, NOW_MS)
    entries = []
    for id in range(1, 6):
        granted = lifecycle.claim(life, QueuePolicy(), NOW_MS, token=b"t" * 16, lease_ms=1_000 * id).life
        assert granted is not None
        entries.append(StoredMessage(p, make_envelope(DRAFTS["bytes"], id, NOW_MS), granted, keys.id_bytes(id), 3))
    for count in range(1, len(entries) + 1):
        for chosen in permutations(entries, count):
            named = list(chosen)
            names = [p + each.id16 for each in named]
            expiries = [plain_messages.expiry_key(each) for each in named]
            _, claimed_expiries, claimed_leases = plain_messages.decode_part(
                *plain_messages.encode_claimed(p, named, [each.life for each in named])
            )
            assert (claimed_expiries[1], claimed_leases[1]) == (expiries, names)
            finished = plain_messages.decode_part(*plain_messages.encode_finished(p, named))
            assert [changed for _, changed, _ in finished] == [expiries, names, names]


def test_a_frame_of_format_2_that_has_many_keys_of_a_family_is_replayed() -> None:
    layer = Layer()
    names = [b"%024d" % number for number in range(3)]
    many = 256
    parts = [
        *(many + keys.MESSAGES, names, [b"a", b"b", b"c"]),
        *(many + keys.VISIBLE, names, b""),
        *(many + keys.VISIBLE, names[:1], None),
    ]
    encoded = msgspec.msgpack.encode(parts)
    layer.replay(len(encoded).to_bytes(4, "little") + encoded, 1, 0)
    messages, visible = layer.families[keys.MESSAGES], layer.families[keys.VISIBLE]
    assert [messages.get(name) for name in names] == [b"a", b"b", b"c"]
    assert [visible.get(name) for name in names] == [None, b"", b""]


def test_a_finished_message_that_a_checkpoint_has_not_written_never_gets_keys(tmp_path: Path) -> None:
    opened = Database(tmp_path / "store")
    p, draft = QUEUES[0], DRAFTS["bytes"]
    life = lifecycle.first_life(draft, None, NOW_MS)
    fresh = [
        StoredMessage(p, make_envelope(draft, id, NOW_MS), life, keys.id_bytes(id), draft.bytes) for id in range(1, 5)
    ]
    claimed = lifecycle.claim(life, QueuePolicy(), NOW_MS, token=b"t" * 16, lease_ms=1_000).life
    assert claimed is not None
    opened.commit.add_plain(p, fresh, plain_messages.choose_form([draft]))
    opened.commit.claim_plain(p, fresh, [claimed] * 4)
    opened.commit.finish_plain(p, fresh[:3])
    opened.write()
    assert len(opened.commit.layer.keyless) == 1
    assert [len(family) for family in opened.commit.layer.families] == [0] * len(keys.FAMILY_NAMES)
    assert opened.get(keys.LEASES, p + fresh[3].id16) is not None
    assert len(opened.commit.layer.keyless) == 0
    opened.close()
