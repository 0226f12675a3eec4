"""The object store keeps the laws: on a bucket in memory, and on a directory.

What SPEC 6.2 lets it do otherwise no law asks for: counts cost a listing, priority orders what a listing has found (all
of it, in queues as small as these), and leases of another process end a second later.
"""

from pathlib import Path

import pytest

from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.objects.buckets.disk import DiskBucket
from holdfast.testing import EmbeddedSubject, Subject
from holdfast.testing.laws import StoreLaws
from holdfast.testing.laws.claiming.groups import GroupLaws
from holdfast.testing.laws.claiming.ledger import LedgerLaws
from holdfast.testing.laws.lifecycle.leases import LeaseLaws
from holdfast.testing.laws.lifecycle.state_documents import StateDocumentLaws
from holdfast.testing.laws.lifecycle.states import StateLaws

WEEK_MS = 7 * 86_400_000


def _on_disk(directory: Path) -> Subject:
    return EmbeddedSubject(
        lambda dice: ObjectStore(DiskBucket(directory / "bucket", syncs=False), dice, journal_retention_ms=WEEK_MS)
    )


class TestObjectStoreInMemory(StoreLaws):
    @pytest.fixture
    def subject(self) -> Subject:
        return EmbeddedSubject(lambda dice: ObjectStore(MemoryBucket(), dice, journal_retention_ms=WEEK_MS))


@pytest.mark.slow
class TestObjectStoreOnDisk(StateLaws, LeaseLaws, GroupLaws, LedgerLaws, StateDocumentLaws):
    """Those that are about single messages; all of them are a proof, for the disk takes minutes."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return _on_disk(tmp_path)


@pytest.mark.proof
class TestObjectStoreOnDiskWhole(StoreLaws):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return _on_disk(tmp_path)
