"""Check every invariant of a PostgreSQL store, in one or several databases, while servers may be at work.

Each database is read in one read-only snapshot, so what it has is consistent. Rows that a server leaves for a sweep are
counted as leftovers. What several databases must agree on is looked at again in later snapshots before it is reported,
because theirs are not of one moment.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from asyncpg.exceptions import InsufficientPrivilegeError

from holdfast.background import sleep_for
from holdfast.clock import Clock, SystemClock
from holdfast.model.errors import Forbidden
from holdfast.model.ids import to_bytes, to_uuid
from holdfast.model.invariants.damage import DamageKind
from holdfast.stores.findings import Findings, Progress, Report
from holdfast.stores.formats.logged_enqueue import LoggedBatch
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import error_text, hide_password
from holdfast.stores.postgres.verify.cluster_check import Found, check_cluster
from holdfast.stores.postgres.verify.directory_check import DatabaseDirectory, read_directory
from holdfast.stores.postgres.verify.groups_check import check_groups
from holdfast.stores.postgres.verify.journal_check import JournalCheck, Suspect
from holdfast.stores.postgres.verify.logs_check import LogsCheck
from holdfast.stores.postgres.verify.messages_check import MessagesCheck
from holdfast.stores.postgres.verify.payloads_check import PayloadsCheck
from holdfast.stores.postgres.verify.side_check import SideCheck
from holdfast.stores.postgres.verify.snapshots import Snapshot, open_snapshots

# Pause before new snapshots are taken: changes under way have ended by then.
PAUSE_MS = 1_000
# How often a suspicion is looked at again.
_TRIES = 3
# With more suspects than this the store is damaged, and further ones are reported at once.
_MAX_SUSPECTS = 10_000
_ESTIMATE = "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = to_regclass($1)"


def verify(
    urls: Sequence[str],
    progress: Progress | None = None,
    *,
    shard_map: str = "slots",
    logs: Sequence[Iterable[LoggedBatch]] = (),
) -> Report:
    """Check the store in the databases `urls`, and the calls in the logs of its servers. Return a report. Nothing is
    written.

    Raise `InvalidArgument` if the URLs do not name all databases of one store, and `StoreUnavailable` if one of them
    does not respond or has another version of the schema.
    """
    return asyncio.run(verify_databases(urls, SystemClock(), progress, shard_map=shard_map, logs=logs))


async def verify_databases(
    urls: Sequence[str],
    clock: Clock,
    progress: Progress | None = None,
    *,
    shard_map: str = "slots",
    logs: Sequence[Iterable[LoggedBatch]] = (),
    pause_ms: int = PAUSE_MS,
    uses_caller_time: bool = False,
) -> Report:
    """Check a store as `verify` says. `pause_ms` is waited on the clock before new snapshots are taken. With
    `uses_caller_time`, for tests, the time is the clock's and not the databases'."""
    cluster = PostgresCluster(list(urls), shard_map=shard_map)
    try:
        await cluster.open()
        findings = Findings(progress)
        now_ms = clock.now_ms() if uses_caller_time else None
        await _StoreCheck(cluster, findings, clock, pause_ms, now_ms).run(logs)
    except InsufficientPrivilegeError as error:
        raise Forbidden(
            f"this role may not read the store: {error_text(error)}; grant it USAGE on the schema holdfast and SELECT "
            "on all of its tables"
        ) from error
    finally:
        await cluster.close()
    return findings.report(",".join(hide_password(url) for url in urls))


class _StoreCheck:
    """The check of one store."""

    def __init__(
        self, cluster: PostgresCluster, findings: Findings, clock: Clock, pause_ms: int, now_ms: int | None
    ) -> None:
        self._cluster = cluster
        self._findings = findings
        self._clock = clock
        self._pause_ms = pause_ms
        # None: each database's own time.
        self._now_ms = now_ms
        self._suspects: list[Suspect] = []
        self._found: list[Found] = []
        # A message for each node number in ids that was never leased.
        self._nodes: dict[int, int] = {}

    async def run(self, logs: Sequence[Iterable[LoggedBatch]]) -> None:
        """Check the databases in one snapshot each, and then the suspects again."""
        async with self._snapshots() as snapshots:
            await self._check(snapshots, logs)
        await self._check_again()

    def _snapshots(self) -> AbstractAsyncContextManager[list[Snapshot]]:
        return open_snapshots(self._cluster.shards)

    async def _check(self, snapshots: list[Snapshot], logs: Sequence[Iterable[LoggedBatch]]) -> None:
        findings = self._findings
        messages = sum([await each.value(_ESTIMATE, "items") for each in snapshots])
        events = sum([await each.value(_ESTIMATE, "journal") for each in snapshots])
        directories = await self._read_directories(snapshots, findings)
        self._found = await check_cluster(snapshots, directories, uses_slots=self._cluster.uses_slots)
        for snapshot, directory in zip(snapshots, directories, strict=True):
            await self._check_database(snapshot, directory, messages)
        self._forget_leased(directories)
        check = LogsCheck(snapshots, directories, findings)
        for log in logs:
            await check.check(log)
        journal = _journal_check(snapshots, directories, findings, events)
        await _guard_all(snapshots, findings, "the journal", journal.check_numbers)
        await _guard_all(snapshots, findings, "the journal", partial(self._collect_suspects, journal))
        findings.totals["events"] = journal.events
        findings.progress("journal", journal.events, journal.events)
        findings.totals["tenants"] = len(set[str]().union(*(each.tenants for each in directories)))

    async def _read_directories(self, snapshots: Sequence[Snapshot], findings: Findings) -> list[DatabaseDirectory]:
        directories = []
        for snapshot in snapshots:
            async with snapshot.reading():
                directories.append(await read_directory(snapshot, findings, self._now_ms))
        return directories

    def _forget_leased(self, directories: Sequence[DatabaseDirectory]) -> None:
        """Drop the node numbers that were leased. The first database has them."""
        self._nodes = {node: id for node, id in self._nodes.items() if node not in directories[0].nodes}

    async def _check_database(self, snapshot: Snapshot, directory: DatabaseDirectory, total: int) -> None:
        findings = self._findings
        side = SideCheck(snapshot, directory, findings)
        messages = MessagesCheck(snapshot, directory, findings, total)
        checks: tuple[tuple[str, Callable[[], Awaitable[None]]], ...] = (
            ("the arriving messages", side.read_arrivals),
            ("the messages", messages.run),
            ("the groups", partial(check_groups, snapshot, directory, findings)),
            ("the payloads", PayloadsCheck(snapshot, directory, findings).run),
            ("the idempotency keys", side.check_keys),
            ("the claim ledgers", side.check_ledgers),
            ("the schedules", side.check_schedules),
            ("the record numbers of logs", side.check_landed),
        )
        for what, check in checks:
            await snapshot.guard(findings, what, check)
        for node, id in messages.nodes.items():
            self._nodes.setdefault(node, id)

    async def _collect_suspects(self, journal: JournalCheck) -> None:
        async for suspect in journal.suspects():
            if len(self._cluster.shards) == 1 or len(self._suspects) >= _MAX_SUSPECTS:
                self._report([suspect])
            else:
                self._suspects.append(suspect)

    # --- Suspects ----------------------------------------------------------------------------------------------------

    async def _check_again(self) -> None:
        """Report what later snapshots have too. A single database needs none: its snapshot is consistent."""
        suspects, found = self._suspects, self._found
        if len(self._cluster.shards) > 1:
            for _ in range(_TRIES):
                if not (suspects or found or self._nodes):
                    return
                await sleep_for(self._clock, self._pause_ms)
                async with self._snapshots() as snapshots:
                    # Its own findings, because the first look has reported those of each database.
                    directories = await self._read_directories(snapshots, Findings())
                    for each in zip(snapshots, directories, strict=True):
                        await SideCheck(*each, Findings()).read_arrivals()
                    journal = _journal_check(snapshots, directories, Findings(), 0)
                    ids = sorted({each.id for each in suspects})
                    now = {each async for each in journal.suspects(ids)} if ids else set()
                    suspects = [each for each in suspects if each in now]
                    again = await check_cluster(snapshots, directories, uses_slots=self._cluster.uses_slots)
                    found = [each for each in found if each in again]
                    self._forget_leased(directories)
        self._report(suspects)
        for queue, problem in found:
            self._findings.add_all([problem], queue)
        for node, id in sorted(self._nodes.items()):
            what = f"node number {node} was never leased, but message {to_uuid(id)} has an id of it: a server that "
            self._findings.add(DamageKind.NODE_LOST, what + "leases it could give the id again")

    def _report(self, suspects: Iterable[Suspect]) -> None:
        for id, title, problem in suspects:
            self._findings.add_all([problem], title, to_bytes(id))


def _journal_check(
    snapshots: Sequence[Snapshot], directories: Sequence[DatabaseDirectory], findings: Findings, total: int
) -> JournalCheck:
    return JournalCheck(
        snapshots=snapshots,
        directories=directories,
        findings=findings,
        total=total,
        has_moved_slots=any(each.epoch > 1 for each in directories),
    )


async def _guard_all(
    snapshots: Sequence[Snapshot], findings: Findings, what: str, check: Callable[[], Awaitable[None]]
) -> None:
    """Run a check of all databases under the guard of each."""
    for snapshot in snapshots:
        check = partial(snapshot.guard, findings, what, check)
    await check()
