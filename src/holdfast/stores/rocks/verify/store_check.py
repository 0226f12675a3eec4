"""The check of every invariant of a store (docs/stores/rocksdb.md) by a full scan.

The checks decode keys by themselves and share no code with the writer, so that an error there is found here. They read
indexes in the same order as the messages, so that memory does not grow with the store.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.invariants.damage import DamageKind
from holdfast.stores.findings import Findings, Progress, Report, Violation
from holdfast.stores.rocks.legacy.files import is_legacy
from holdfast.stores.rocks.offline.read_only import ReadOnlyShards, ReadOnlyStore
from holdfast.stores.rocks.recovery.layout import LEGACY
from holdfast.stores.rocks.verify.directory_check import StoredDirectory, check_prefixes, read_directories
from holdfast.stores.rocks.verify.index_check import DEADLINES, Deadlines, check_seen_ends, count_deadlines
from holdfast.stores.rocks.verify.journal_check import check_journal
from holdfast.stores.rocks.verify.legacy_check import check_legacy
from holdfast.stores.rocks.verify.pieces_check import check_blobs
from holdfast.stores.rocks.verify.queue_check import RocksQueueCheck

__all__ = ["Progress", "Report", "Violation", "verify"]


def verify(path: str | os.PathLike[str], progress: Progress | None = None) -> Report:
    """Check a store that no process has open, without changing it, and return a report.

    Raise `InvalidArgument` if the directory has no store, `StoreUnavailable` if the store is in use or cannot be read.
    """
    store = _open(Path(path))
    findings = Findings(progress)
    try:
        check_shards(store.shards, findings)
        legacy = Path(path) / LEGACY if store.has_legacy else None
        _guard(findings, "the legacy database", lambda: check_legacy(legacy, store.shards, findings))
    finally:
        store.close()
    return findings.report(str(path))


def _open(path: Path) -> ReadOnlyShards:
    if not path.is_dir() or not any(path.iterdir()):
        raise InvalidArgument(f"{path} holds no store: give the directory that `holdfast.open` was given", field="path")
    if is_legacy(path):
        raise InvalidArgument(
            f"{path} is a database of the legacy layout: it is checked by its migration, `holdfast db migrate {path}`",
            field="path",
        )
    try:
        return ReadOnlyShards.alone(path, may_have_legacy=True)
    except StoreUnavailable as error:
        if "pid" not in error.facts:
            raise
        raise StoreUnavailable(
            f"{error.message}; to check it meanwhile: `holdfast backup {path} COPY`, then `holdfast verify COPY`",
            **error.facts,
        ) from None


def check_shards(shards: list[ReadOnlyStore], findings: Findings) -> None:
    """Check all shards of a store, and add the violations and counts to `findings`."""
    directories = read_directories(shards, findings)
    total = sum(counters.messages for directory in directories for counters in directory.counters.values())
    for database, directory in zip(shards, directories, strict=True):
        _check_shard(database, directory, total, findings)
    _guard(findings, "the journal", lambda: check_journal(shards, directories, findings))


def _check_shard(database: ReadOnlyStore, directory: StoredDirectory, total: int, findings: Findings) -> None:
    _guard(findings, "the directory", lambda: check_prefixes(database, directory, findings))
    deadlines: Deadlines = {}
    for space in DEADLINES:
        count = partial(count_deadlines, database, space, directory, deadlines, findings)
        _guard(findings, space.title, count)
    blobs_before = findings.totals["blobs"]
    for row in directory.queues:
        check = RocksQueueCheck(database, row, directory, deadlines, findings, total)
        _guard(findings, f"queue {row.ref}", check.run)
    found = findings.totals["blobs"] - blobs_before
    _guard(findings, "the payloads", lambda: check_blobs(database, found, findings))
    _guard(findings, "the idempotency keys", lambda: check_seen_ends(database, directory, findings))


def _guard(findings: Findings, what: str, check: Callable[[], None]) -> None:
    """Run one check. If a damaged file ends it, add that as a violation, so that the other checks still run."""
    try:
        check()
    except StoreUnavailable as error:
        findings.add(DamageKind.STORE_UNREADABLE, f"{what} cannot be read to the end: {error}")
    except Exception as error:
        # RocksDB's binding raises plain `Exception`. Any other class is a bug in the check.
        if type(error) is not Exception:
            raise
        findings.add(DamageKind.STORE_UNREADABLE, f"{what} cannot be read to the end: {error}; restore a backup")
