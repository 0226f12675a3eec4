"""The merged view of the log's changes and RocksDB, against a plain dictionary, at every step of a checkpoint."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine import rocks_writes
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.engine.layers import Layer
from holdfast.stores.rocks.engine.reads import MergedReads
from holdfast.stores.rocks.log.commit_log import LogPosition
from holdfast.stores.rocks.offline.read_only import ReadOnlyStore
from tests.crash.rocks import copy_store
from tests.stores.rocks.log.database_ends import mark_as_killed, sync

FAMILIES = (keys.DIRECTORY, keys.VISIBLE, keys.INDEXES)
# In the directory's own key space, but none of its keys.
LOWEST, HIGHEST = b"x/", b"x0"
NAMES = st.integers(0, 15).map(lambda number: b"x/%02d" % number) | st.just(b"x/07")
VALUES = st.binary(max_size=3)

Model = dict[tuple[int, bytes], bytes]


class MergedReadsMachine(RuleBasedStateMachine):
    """A state machine of changes, commits, checkpoints in slices, kills and closings, in any order."""

    def __init__(self) -> None:
        super().__init__()
        # Slices of two keys: a kill may fall between any of them.
        self.small_slices = patch.object(rocks_writes, "_SLICE_KEYS", 2)
        self.small_slices.start()
        self.place = Path(tempfile.mkdtemp())
        self.model: Model = {}
        self.committed: Model = {}
        self.frozen: tuple[Layer, LogPosition] | None = None
        self.slices: Iterator[bool] | None = None
        self.copies = 0

    @initialize()
    def make(self) -> None:
        self.database = Database(self.place / "store")

    def teardown(self) -> None:
        self.end_checkpoint()
        self.commit()
        self.database.close()
        shutil.rmtree(self.place)
        self.small_slices.stop()

    # --- Changes -----------------------------------------------------------------------------------------------

    @rule(family=st.sampled_from(FAMILIES), key=NAMES, value=VALUES)
    def put(self, family: int, key: bytes, value: bytes) -> None:
        if (family, key) in self.model:
            self.database.commit.put(key, value, family)
        else:
            self.database.commit.insert(key, value, family)
        self.model[family, key] = value

    @rule(family=st.sampled_from(FAMILIES), key=NAMES, value=VALUES)
    def put_whether_or_not_it_is_there(self, family: int, key: bytes, value: bytes) -> None:
        self.database.commit.put(key, value, family)
        self.model[family, key] = value

    @rule(family=st.sampled_from(FAMILIES), key=NAMES)
    def delete(self, family: int, key: bytes) -> None:
        self.database.commit.delete(key, family)
        self.model.pop((family, key), None)

    @rule(family=st.sampled_from(FAMILIES), ends=st.tuples(NAMES, NAMES).map(sorted))
    def delete_range(self, family: int, ends: list[bytes]) -> None:
        lower, upper = ends
        self.database.commit.delete_range(lower, upper, family)
        for each, key in list(self.model):
            if each == family and lower <= key < upper:
                del self.model[each, key]

    @rule()
    def commit(self) -> None:
        if not self.database.commit.is_empty:
            self.database.write()
        self.committed = dict(self.model)

    # --- Checkpoints -------------------------------------------------------------------------------------------

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
        """Flush at any moment, even between two slices, as RocksDB may."""
        self.database.flush()

    # --- Ends --------------------------------------------------------------------------------------------------

    @rule()
    def kill(self) -> None:
        """Open a copy of the files, as a kill leaves them: it has everything committed, and nothing else."""
        copy = copy_store(self.database.path, self.place / f"copy {self.copies}")
        self.copies += 1
        mark_as_killed(copy)
        before = {str(file): file.stat().st_mtime_ns for file in copy.rglob("*") if not file.name.startswith("LOG")}
        read_only = ReadOnlyStore(copy)
        check(read_only, self.committed)
        read_only.close()
        after = {str(file): file.stat().st_mtime_ns for file in copy.rglob("*") if not file.name.startswith("LOG")}
        assert after == before, "reading it has changed it"
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

    @invariant()
    def it_reads_as_the_model(self) -> None:
        if hasattr(self, "database"):
            check(self.database, self.model)


def check(reads: MergedReads, model: Model) -> None:
    for family in FAMILIES:
        expected = sorted((key, value) for (each, key), value in model.items() if each == family)
        assert list(reads.items(family, LOWEST, HIGHEST)) == expected
        assert list(reads.scan(family, b"x/04", b"x/11")) == [key for key, _ in expected if b"x/04" <= key < b"x/11"]
        wanted = [b"x/%02d" % number for number in range(16)]
        values = dict(expected)
        assert reads.get_many(family, wanted) == [values.get(key) for key in wanted]
        for key in wanted[::5]:
            assert reads.get(family, key) == values.get(key)
            below = [each for each in values if each <= key]
            found = reads.floor(family, key)
            assert (found if found is not None and found >= LOWEST else None) == max(below, default=None)


TestMergedReads = MergedReadsMachine.TestCase
TestMergedReads.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_key_that_half_a_checkpoint_has_written_and_that_was_deleted_since_stays_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB has flushed the key, but not the log position, so its creation and deletion are replayed."""
    monkeypatch.setattr(rocks_writes, "_SLICE_KEYS", 2)
    opened = Database(tmp_path / "store")
    for number in range(8):
        opened.commit.insert(b"x/%02d" % number, b"old", keys.INDEXES)
    opened.write()
    sync(opened)
    slices = opened.write_slices(*opened.begin_checkpoint())
    next(slices)
    opened.flush()
    for number in range(8):
        opened.commit.delete(b"x/%02d" % number, keys.INDEXES)
    opened.write()
    killed = copy_store(opened.path, tmp_path / "killed")
    mark_as_killed(killed)
    for _ in slices:
        pass
    opened.end_checkpoint()
    opened.close()
    read_only = ReadOnlyStore(killed)
    assert list(read_only.scan(keys.INDEXES, LOWEST, HIGHEST)) == []
    read_only.close()
    recovered = Database(killed)
    assert list(recovered.scan(keys.INDEXES, LOWEST, HIGHEST)) == []
    recovered.close()
