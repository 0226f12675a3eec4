"""Power cuts and directories: a name lasts once the directory that holds it is synced."""

import os
from pathlib import Path

import pytest

from holdfast.stores.objects.buckets.disk import DiskBucket

KEY = "acme/q/mail/msg/1.pb"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files and directories that were synced, in order."""
    paths: list[Path] = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        paths.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return paths


async def test_a_new_queues_directories_outlast_a_power_cut(tmp_path: Path, synced: list[Path]) -> None:
    root = tmp_path / "a" / "bucket"
    bucket = DiskBucket(root)
    await bucket.open()
    assert {tmp_path, root.parent} <= set(synced)

    synced.clear()
    await bucket.create(KEY, b"one")

    expected = [root, root / "acme", root / "acme/q", root / "acme/q/mail", root / "acme/q/mail/msg"]
    assert [path for path in synced if path.is_dir()] == expected
    await bucket.close()


async def test_a_directory_that_another_process_made_is_synced_before_it_is_relied_on(
    tmp_path: Path, synced: list[Path]
) -> None:
    (tmp_path / KEY).parent.mkdir(parents=True)
    bucket = DiskBucket(tmp_path)
    await bucket.open()
    synced.clear()

    await bucket.put(KEY, b"one")
    assert tmp_path / "acme/q/mail" in synced

    synced.clear()
    await bucket.put("acme/q/mail/msg/2.pb", b"two")
    assert [path for path in synced if path.is_dir()] == [tmp_path / "acme/q/mail/msg"]
    await bucket.close()
