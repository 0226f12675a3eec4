"""The machinery of the disk's faults: the shim, its trace, and the images of a disk that are made of it."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machinery.disk.images import Image
from tests.machinery.disk.shim import build_shim
from tests.machinery.disk.trace import Kind, Trace
from tests.machinery.disk.workers import Workers

IMAGES = 300


def record(kind: Kind, path: str = "", other: str = "", inode: int = 0, number: int = 0, data: bytes = b"") -> bytes:
    head = b"".join(each.to_bytes(4, "little") for each in (kind, len(path), len(other), len(data)))
    return head + inode.to_bytes(8, "little") + number.to_bytes(8, "little") + path.encode() + other.encode() + data


def trace_of(root: Path, *records: bytes) -> Trace:
    trace = root.with_name("trace")
    trace.write_bytes(b"".join(records))
    return Trace(trace, root)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def images_of(trace: Trace, place: Path) -> Iterator[dict[str, bytes]]:
    for number in range(IMAGES):
        root = place / f"image {number}"
        Image(trace, trace.size, random.Random(number)).write_to(root)
        yield {file.name: file.read_bytes() for file in root.rglob("*") if file.is_file()}


def synced(inode: int, number: int, *, fails: bool = False) -> bytes:
    end = Kind.SYNC_FAILS if fails else Kind.SYNC_ENDS
    return record(Kind.SYNC_BEGINS, inode=inode, number=number) + record(end, inode=inode, number=number)


def test_what_was_synced_is_in_every_image_and_all_else_in_some(root: Path, tmp_path: Path) -> None:
    trace = trace_of(
        root,
        record(Kind.CREATE, f"{root}/kept", inode=7),
        record(Kind.WRITE, inode=7, number=0, data=b"a" * 1_000),
        synced(7, 1),
        synced(root.stat().st_ino, 2),
        record(Kind.WRITE, inode=7, number=1_000, data=b"b" * 1_000),
        record(Kind.CREATE, f"{root}/loose", inode=8),
    )
    found = list(images_of(trace, tmp_path))
    assert {image["kept"][:1_000] for image in found} == {b"a" * 1_000}
    ends = {image["kept"][1_000:] for image in found}
    assert {b"", b"b" * 1_000} <= ends
    assert any(end and not end.count(b"b") for end in ends)  # longer, and nothing there
    assert any(0 < end.count(b"b") < 1_000 for end in ends)  # torn
    assert {"loose" in image for image in found} == {True, False}


def test_a_name_lasts_once_its_folder_is_synced(root: Path, tmp_path: Path) -> None:
    trace = trace_of(
        root,
        record(Kind.CREATE, f"{root}/a.new", inode=7),
        record(Kind.WRITE, inode=7, number=0, data=b"whole"),
        synced(7, 1),
        record(Kind.RENAME, f"{root}/a.new", f"{root}/a", inode=7),
        synced(root.stat().st_ino, 2),
        record(Kind.UNLINK, f"{root}/a"),
    )
    found = list(images_of(trace, tmp_path))
    assert all(image in ({"a": b"whole"}, {}) for image in found)
    assert {len(image) for image in found} == {0, 1}


def test_after_a_sync_that_failed_no_later_one_brings_back_what_it_dropped(root: Path, tmp_path: Path) -> None:
    trace = trace_of(
        root,
        record(Kind.CREATE, f"{root}/a", inode=7),
        synced(root.stat().st_ino, 1),
        record(Kind.WRITE, inode=7, number=0, data=b"x" * 600),
        synced(7, 2, fails=True),
        record(Kind.WRITE, inode=7, number=600, data=b"y" * 600),
        synced(7, 3),
    )
    contents = [image["a"] for image in images_of(trace, tmp_path)]
    assert {content[600:] for content in contents} == {b"y" * 600}
    assert len({content[:600] for content in contents}) > 1


def test_a_missing_compiler_is_an_error_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(RuntimeError, match="install one"):
        build_shim()


def test_the_shim_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = build_shim()
    assert library.parent == tmp_path / "holdfast"
    made_at = library.stat().st_mtime_ns
    assert build_shim().stat().st_mtime_ns == made_at


def test_errors_in_a_driver_are_reported(tmp_path: Path) -> None:
    with Workers() as workers:
        assert "no_such_task" in (workers.call("points:no_such_task").error or "")
        calls = workers.call(
            "points:count_calls", place=os.fspath(tmp_path), seed=1, durability="os", shards=1, while_reopening=False
        )
        assert calls.error is None
        assert calls.result > 500
