"""The number of shards is decided when a store is made; each has its part of the queues, and all are one store."""

import json
import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast.model.errors import HoldfastError, InvalidArgument, OverQuota, StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.rocks.engine.checkpoints import Checkpoints
from holdfast.stores.rocks.offline.backup import backup
from holdfast.stores.rocks.offline.backup_reader import CopyJournal, CopyMessages
from holdfast.stores.rocks.recovery.marker import MARKER
from holdfast.stores.rocks.verify.store_check import verify
from holdfast.testing import ManualClock
from tests.crash.rocks import contents, copy_store, core_of, open_store, sweep, verify_store
from tests.stores.rocks.shards.queues import SHARDS, queue_in, shard_of

QUEUES = 12


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four shards with messages in each, closed."""
    path = tmp_path_factory.mktemp("filled") / "store"
    with open_store(path, shards=SHARDS) as hf:
        for number in range(QUEUES):
            hf.queue(f"queue-{number}", tenant="acme" if number % 2 else "default").enqueue([b"a", b"b"])
        assert {shard_of(hf, row.queue, "acme") for row in hf.queues(tenant="acme")} > {0}
    return path


def counts(path: Path) -> dict[str, int]:
    with open_store(path) as hf:
        return {
            f"{tenant}/{row.queue}": hf.queue(row.queue, tenant=tenant).stats().ready
            for tenant in ("acme", "default")
            for row in hf.queues(tenant=tenant)
        }


# --- The number ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("4.4")
def test_a_store_keeps_the_number_of_shards_it_was_made_with(filled: Path, tmp_path: Path) -> None:
    store = copy_store(filled, tmp_path / "store")
    assert sorted(each.name for each in (store / "shards-1").iterdir()) == ["0", "1", "2", "3"]
    for shards in (None, SHARDS):
        with open_store(store, shards=shards) as hf:
            assert len(core_of(hf).store.shards) == SHARDS  # type: ignore[attr-defined]  # `core_of` has any store
            assert hf.tenant("acme").stats().ready == QUEUES


@pytest.mark.spec("4.4")
@pytest.mark.parametrize("shards", [1, 3, 5])
def test_another_number_of_shards_is_refused_and_changes_nothing(filled: Path, tmp_path: Path, shards: int) -> None:
    store = copy_store(filled, tmp_path / "store")
    before = contents(store)
    with pytest.raises(InvalidArgument, match=f"made with 4 shards.*holdfast db reshard .* --shards {shards}"):
        open_store(store, shards=shards)
    assert contents(store) == before


def test_a_store_without_shards_is_refused_with_some_and_opens_without_or_with_one(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as hf:
        hf.queue("mail").enqueue(b"a")
    with pytest.raises(InvalidArgument, match="made with 1 shard: "):
        open_store(tmp_path / "store", shards=2)
    with open_store(tmp_path / "store", shards=1) as hf:
        assert hf.queue("mail").stats().ready == 1


@pytest.mark.parametrize("shards", [0, -1, 65])
def test_a_number_of_shards_that_no_store_can_have_is_refused_and_nothing_is_made(tmp_path: Path, shards: int) -> None:
    with pytest.raises(HoldfastError, match="shards"):
        holdfast.open(str(tmp_path / "store"), shards=shards)
    assert not (tmp_path / "store" / MARKER).exists()


def test_the_directory_of_a_single_shard_is_no_store(filled: Path, tmp_path: Path) -> None:
    store = copy_store(filled, tmp_path / "store")
    for call in (open_store, verify):
        with pytest.raises(InvalidArgument, match=r"is shard 2 of a store: give the store's own directory, .*store"):
            call(store / "shards-1" / "2")


def test_an_older_holdfast_refuses_a_store_with_shards_by_its_format(filled: Path) -> None:
    markers = [filled / MARKER, *(filled / "shards-1").glob(f"*/{MARKER}")]
    assert [json.loads(each.read_text())["format"] for each in markers] == [6] * (1 + SHARDS)


def test_a_missing_shard_is_refused_by_name_and_not_made_again(filled: Path, tmp_path: Path) -> None:
    store = copy_store(filled, tmp_path / "store")
    shutil.rmtree(store / "shards-1" / "2")
    for call in (open_store, verify):
        with pytest.raises(HoldfastError, match="shards-1/2"):
            call(store)
    assert not (store / "shards-1" / "2").exists()


@pytest.mark.parametrize(
    ("was", "now"),
    [('"role"', '"rome"'), ('"folder"', '"foldep"'), ("shards-1", "shards-3"), (": 4", ": 0"), (": 4", ": 5")],
)
def test_a_damaged_marker_is_refused_and_no_shard_is_removed_or_forgotten(
    filled: Path, tmp_path: Path, was: str, now: str
) -> None:
    store = copy_store(filled, tmp_path / "store")
    marker = (store / MARKER).read_text()
    assert was in marker
    (store / MARKER).write_text(marker.replace(was, now))
    for call in (open_store, verify):
        with pytest.raises(StoreUnavailable, match=r"is damaged|is missing"):
            call(store)
    (store / MARKER).write_text(marker)
    assert counts(store) == counts(copy_store(filled, tmp_path / "undamaged"))


def test_a_marker_that_says_fewer_shards_than_there_are_is_refused(filled: Path, tmp_path: Path) -> None:
    store = copy_store(filled, tmp_path / "store")
    marker = json.loads((store / MARKER).read_text())
    (store / MARKER).write_text(json.dumps({**marker, "role": {**marker["role"], "shards": 3}}))
    for call in (open_store, verify):
        with pytest.raises(StoreUnavailable, match=r"3 shards, but .*shards-1/3 is one more"):
            call(store)


@pytest.mark.parametrize("made", [0, 1, 3])
def test_a_store_whose_making_was_killed_is_verified_and_made_to_its_end(tmp_path: Path, made: int) -> None:
    with open_store(tmp_path / "whole", shards=SHARDS):
        pass
    (tmp_path / "store").mkdir()
    marker = json.loads((tmp_path / "whole" / MARKER).read_text())
    (tmp_path / "store" / MARKER).write_text(json.dumps({**marker, "role": {**marker["role"], "is_made": False}}))
    for shard in map(str, range(made)):
        shutil.copytree(tmp_path / "whole" / "shards-1" / shard, tmp_path / "store" / "shards-1" / shard)
    verify_store(tmp_path / "store", "killed")
    with open_store(tmp_path / "store") as hf:
        queue_in(hf, 3).enqueue(b"a")
    verify_store(tmp_path / "store", "made to its end")


def test_a_second_opening_is_refused_while_a_store_with_shards_is_open(filled: Path, tmp_path: Path) -> None:
    store = copy_store(filled, tmp_path / "store")
    with open_store(store), pytest.raises(StoreUnavailable, match="in use"):
        open_store(store)


# --- One store -------------------------------------------------------------------------------------------------------


def test_queues_of_all_shards_are_listed_in_order_and_counted_together(filled: Path, tmp_path: Path) -> None:
    with open_store(copy_store(filled, tmp_path / "store")) as hf:
        names = [row.queue for row in hf.queues(tenant="acme")]
        assert names == sorted(names)
        assert len(names) == QUEUES // 2
        assert hf.tenant("acme").stats().ready == QUEUES
        assert [row.tenant for row in hf.tenants()] == ["acme", "default"]


@pytest.mark.spec("8.9")
def test_quotas_are_exact_across_shards_and_after_an_opening(filled: Path, tmp_path: Path) -> None:
    store = copy_store(filled, tmp_path / "store")
    with open_store(store) as hf:
        hf.tenant("acme").set(quotas={"max_messages": QUEUES + 2, "max_queues": QUEUES // 2 + 1})
    with open_store(store) as hf:
        hf.queue("queue-1", tenant="acme").enqueue(b"one more")
        hf.queue("queue-3", tenant="acme").enqueue(b"the last")
        for number in range(1, QUEUES, 2):
            with pytest.raises(OverQuota, match="max_messages"):
                hf.queue(f"queue-{number}", tenant="acme").enqueue(b"too many")
        hf.queue("queue-5", tenant="acme").claim()[0].ack()
        hf.queue("queue-7", tenant="acme").enqueue(b"in its place")
        hf.queue("new", tenant="acme").set_policy(max_retries=1)
        with pytest.raises(OverQuota, match=r"7 queues.*max_queues") as refused:
            hf.queue("newer", tenant="acme").set_policy(max_retries=1)
        assert refused.value.facts["quota"] == "max_queues"


def test_a_queue_that_was_deleted_and_made_again_may_be_in_another_shard(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(tmp_path / "store", clock, shards=SHARDS) as hf:
        seen = set()
        for round in range(30):
            queue = hf.queue("mail")
            queue.enqueue(b"%d" % round)
            seen.add(shard_of(hf, "mail"))
            assert [message.payload for message in queue.claim(10)] == [b"%d" % round]
            queue.delete(force_after=0)
            sweep(hf)
        assert len(seen) == SHARDS
    verify_store(tmp_path / "store", "at the end")


def test_a_queue_that_is_made_after_a_wait_for_a_checkpoint_is_in_the_shard_of_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues that others make meanwhile take the numbers that it would have had."""
    with open_store(tmp_path / "store", shards=SHARDS) as hf:
        hf.queue("first").enqueue(b"a")
        waits = 0

        async def wait_for_room(checkpoints: Checkpoints) -> None:
            nonlocal waits
            waits += 1
            router = core_of(hf).store._router  # type: ignore[attr-defined]  # `core_of` has any store
            for number in range(3):
                ref = QueueRef("default", f"meanwhile-{waits}-{number}")
                await (await router.choose(ref)).directory.create_queue(ref, 0)

        with monkeypatch.context() as patched:
            patched.setattr(Checkpoints, "is_behind", property(lambda _: waits < 5))
            patched.setattr(Checkpoints, "wait_for_room", wait_for_room)
            hf.queue("waited").enqueue(b"a")
        assert waits == 5
        assert hf.queue("waited").stats().ready == 1
    verify_store(tmp_path / "store", "at the end")


def test_ids_never_repeat_across_shards_and_openings(tmp_path: Path) -> None:
    clock, ids = ManualClock(), set[str]()
    for _ in range(3):
        with open_store(tmp_path / "store", clock, shards=SHARDS) as hf:
            for number in range(8):
                ids |= set(hf.queue(f"queue-{number}").enqueue([b"x"] * 50))
    assert len(ids) == 3 * 8 * 50


def test_versions_jump_in_all_shards_after_a_kill(tmp_path: Path) -> None:
    """A claim that a power cut undid in one shard must not get its version again after a move to another."""
    with open_store(tmp_path / "running", shards=SHARDS) as hf:
        source, target = queue_in(hf, 0), queue_in(hf, 1)
        source.enqueue(b"a")
        killed = copy_store(tmp_path / "running", tmp_path / "killed")
    with open_store(killed) as hf:
        hf.queue(source.ref.queue).move(target.ref.queue)
        [message] = hf.queue(target.ref.queue).claim()
        assert message.version > 1 << 20


def test_an_upload_to_a_queue_that_does_not_exist_lands_in_the_shard_of_the_queue(tmp_path: Path) -> None:
    payload = bytes(range(256)) * 8_192
    with open_store(tmp_path / "store", shards=SHARDS, settings={"max_payload": 8 << 20}) as hf:
        shards = set()
        for number in range(8):
            hf.queue(f"queue-{number}").upload([payload[: 1 << 20], payload[1 << 20 :]])
            shards.add(shard_of(hf, f"queue-{number}"))
            assert hf.queue(f"queue-{number}").claim()[0].payload == payload
        assert len(shards) > 1
    verify_store(tmp_path / "store", "with uploads")


# --- Copies ----------------------------------------------------------------------------------------------------------


def test_a_backup_while_serving_has_every_shard_at_one_moment(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", shards=SHARDS) as hf:
        first, second = queue_in(hf, 0), queue_in(hf, 3)
        first.enqueue([b"%d" % number for number in range(50)])
        hf.backup(str(tmp_path / "before"))
        first.move(second.ref.queue)
        hf.backup(str(tmp_path / "after"))
    for name, expected in (("before", (50, 0)), ("after", (0, 50))):
        verify_store(tmp_path / name, name)
        with open_store(tmp_path / name) as hf:
            found = hf.queue(first.ref.queue).stats().ready, hf.queue(second.ref.queue).stats().ready
            assert found == expected


def test_a_copy_of_the_files_of_an_open_store_has_every_shard(filled: Path, tmp_path: Path) -> None:
    store = copy_store(filled, tmp_path / "store")
    with open_store(store) as hf:
        for number in range(QUEUES):
            hf.queue(f"more-{number}").enqueue(b"c")
        copied = backup(store, tmp_path / "copy")
    assert copied.files > 4 * SHARDS
    verify_store(tmp_path / "copy", "copied")
    assert counts(tmp_path / "copy") == counts(store)


def test_spark_reads_the_messages_and_the_journal_of_every_shard(filled: Path, tmp_path: Path) -> None:
    store = copy_store(filled, tmp_path / "store")
    messages = CopyMessages(str(store))
    try:
        found = {str(ref): len(list(messages.found(ref))) for ref in messages.refs()}
    finally:
        messages.close()
    assert sum(found.values()) == 2 * QUEUES
    with open_store(copy_store(filled, tmp_path / "other")) as hf:
        expected = sorted((event.shard, event.seq, event.id) for event in hf.journal(limit=1_000))
    journal = CopyJournal(str(store), None)
    try:
        read, position = [], None
        while True:
            number, end = journal.measure(position, 5, None)
            if not number:
                break
            for batch in journal.read(position, end):
                columns = batch.to_pydict()
                read += list(zip(columns["shard"], columns["seq"], columns["id"], strict=True))
            position = end
    finally:
        journal.close()
    assert sorted(read) == expected


# --- Verify ----------------------------------------------------------------------------------------------------------


def test_verify_finds_a_queue_that_lies_in_the_wrong_shard(filled: Path, tmp_path: Path) -> None:
    store = copy_store(filled, tmp_path / "store")
    first, second = store / "shards-1" / "0", store / "shards-1" / "1"
    for name in ("db", MARKER):
        for one, other in ((first, tmp_path / name), (second, first), (tmp_path / name, second)):
            source = one / name if one != tmp_path / name else one
            source.rename(other / name if other != tmp_path / name else other)
    violations = [str(each) for each in verify(store).violations]
    assert any("its number belongs to shard" in each for each in violations)


def test_shards_are_not_removed_for_a_marker_that_has_lost_its_part_about_them(filled: Path, tmp_path: Path) -> None:
    store = copy_store(filled, tmp_path / "store")
    marker = json.loads((store / MARKER).read_text())
    (store / MARKER).write_text(json.dumps({"format": 2, "pid": None, "boot": marker["boot"], "rest": None}))
    before = contents(store)
    for call in (open_store, verify):
        with pytest.raises(StoreUnavailable, match="it says that there are no shards"):
            call(store)
    assert contents(store) == before
