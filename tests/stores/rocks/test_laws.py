"""The RocksDB store keeps the laws, with and without waiting for the disk."""

from pathlib import Path

import pytest

from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.testing import EmbeddedSubject, Subject
from holdfast.testing.laws import StoreLaws

WEEK_MS = 7 * 86_400_000


class TestRocksStoreBufferedByTheSystem(StoreLaws):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return EmbeddedSubject(
            lambda dice: RocksStore(tmp_path / "store", dice, durability=Durability.OS, journal_retention_ms=WEEK_MS)
        )


class TestRocksStoreWithFsync(StoreLaws):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return EmbeddedSubject(
            lambda dice: RocksStore(tmp_path / "store", dice, durability=Durability.FSYNC, journal_retention_ms=WEEK_MS)
        )


class TestRocksStoreWithFourShards(StoreLaws):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return EmbeddedSubject(
            lambda dice: RocksStore(
                tmp_path / "store", dice, durability=Durability.FSYNC, journal_retention_ms=WEEK_MS, shards=4
            )
        )
