"""Compose a store and its services. No other module names the concrete stores."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.dice import Dice
from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.dispatch.polling import Polling
from holdfast.dispatch.schedules import Scheduler
from holdfast.dispatch.sweeper import Sweeper
from holdfast.dispatch.wakeups import Wakeups
from holdfast.model.errors import HoldfastError, InvalidArgument
from holdfast.model.extras import require_extra
from holdfast.model.names import QueueNumbers, QueueRef
from holdfast.model.parsing.store_url import UrlKind, parse_store_url
from holdfast.runtime import Runtime
from holdfast.server.kinds import without_password
from holdfast.server.settings import Settings
from holdfast.service.access import Caller
from holdfast.service.admin import AdminService
from holdfast.service.inspection import InspectionService
from holdfast.service.limits.admission import Admission
from holdfast.service.limits.request_turns import RequestTurns
from holdfast.service.operations import Services
from holdfast.service.policy_cache import PolicyCache, Refresher
from holdfast.service.queues import QueueService
from holdfast.service.schedules import ScheduleService
from holdfast.service.session import Session
from holdfast.stores.contract import Store

if TYPE_CHECKING:
    from holdfast.server.store_processes.division import Division
    from holdfast.service.limits.shared_buckets import SharedBuckets
    from holdfast.stores.event_loop.link import LoopBridge
    from holdfast.stores.postgres import PostgresStore

_log = logging.getLogger("holdfast")


class Core:
    """A store with its dispatcher, background loops and services, which doors and clients call."""

    def __init__(self, store: Store, runtime: Runtime, settings: Settings, dice: Dice | None = None) -> None:
        self.store = store
        self.runtime = runtime
        self._directory = PolicyCache(store, runtime.clock, auto_create=settings.auto_create)
        self.dispatcher = Dispatcher(
            store,
            runtime,
            polling=_polling(store, settings),
            dice=dice,
            weight_of=self._directory.weight_of,
            shard_of=store.shard_of,
        )
        self.admission = Admission(self._directory, runtime)
        self._redis_url = settings.redis_url
        # The buckets that this server shares with others, if it does.
        self.shared: SharedBuckets | None = None
        self._line: LoopBridge | None = None
        self.refresher = Refresher(self._directory, runtime) if not store.capabilities.pushes_wakeups else None
        self.sweeper = Sweeper(store, runtime)
        self.scheduler = Scheduler(store, runtime, self.admission.admit_enqueue)
        self.messages = QueueService(
            store, self.dispatcher, self._directory, self.admission, runtime, max_payload=settings.max_payload
        )
        self.inspection = InspectionService(store, self.dispatcher, self._directory, self.admission, runtime)
        self.admin = AdminService(store, self.dispatcher, self._directory, runtime, max_payload=settings.max_payload)
        schedules = ScheduleService(store, self._directory, runtime, max_payload=settings.max_payload)
        self.services = Services(self.messages, self.inspection, self.admin, schedules)
        # The calls that other store processes make to this one; None if there is no other.
        self.division: Division | None = None
        # Called with the reason if a stopped store can never be used again in this process.
        self.on_store_lost: Callable[[str], None] = lambda why: None

    async def open(self) -> None:
        wakeups = Wakeups(
            *(self.dispatcher, self.sweeper, self.scheduler),
            reopened=lambda: self.runtime.spawn(self._reload()),
            lost=lambda why: self.on_store_lost(why),
        )
        await self.store.open(wakeups, self.runtime)
        await self._directory.load()
        if self._redis_url is not None:
            await self._share_buckets(self._redis_url)
        if self.refresher is not None:
            self.refresher.start()
        self.scheduler.start()

    async def _reload(self) -> None:
        """Load limits and weights again after the store was reopened.

        A call that failed while the store stopped may have changed them.
        """
        try:
            await self._directory.load()
        except HoldfastError as error:  # it has stopped again, and is loaded after the next reopening
            _log.debug("limits_not_reloaded error=%s", error.message)

    async def _share_buckets(self, redis_url: str) -> None:
        # Imported here, so that only servers with Redis load its drivers.
        from holdfast.service.limits.redis_rates import RedisRates
        from holdfast.service.limits.shared_buckets import SharedBuckets
        from holdfast.stores.event_loop.link import LoopBridge

        self._line = LoopBridge(self.runtime)
        self.shared = SharedBuckets(RedisRates(redis_url), self._line, self.runtime)
        await self.shared.start()
        self.admission.set_buckets(self.shared)

    def open_session(self, caller: Caller) -> Session:
        """Return the services as this caller may use them."""
        return Session(caller, self.services)

    async def check_store(self) -> list[str]:
        """Return what is wrong although the store takes calls. Raise `StoreUnavailable` while it cannot be used."""
        return await self.admin.check_store()

    def request_turns(self) -> RequestTurns:
        """Return an object that decides which request is read next. The doors of a process share one."""
        return RequestTurns(self._directory.weight_of)

    def weight_of(self, tenant: str) -> int:
        """Return the weight of a tenant's turns."""
        return self._directory.weight_of(tenant)

    def numbers_of(self, ref: QueueRef) -> QueueNumbers | None:
        """Return the numbers of a queue for a log line; None if they are not known. Never raises."""
        try:
            return self.store.directory.numbers_of(ref)
        except Exception:
            # The line is written without them: a stopped or closing store must not keep an event out of the log.
            return None

    def begin_drain(self) -> None:
        """End every wait with an empty result, and let no call wait from now on. Other calls still work."""
        self.messages.close()
        self.inspection.close()
        self.dispatcher.close()

    async def close(self) -> None:
        """End the waits, stop the background loops and close the store. Leases stay as they are."""
        self.begin_drain()
        self.sweeper.close()
        self.scheduler.close()
        if self.refresher is not None:
            self.refresher.close()
        if self.shared is not None and self._line is not None:
            await self._line.close(self.shared.close())
            self.shared = None
        await self.store.close()

    @property
    def left_to_log(self) -> int:
        """Return the number of acknowledged changes that are only in the log of a closed store.

        Its next start moves them to the database.
        """
        left: int = getattr(self.store, "left_in_log", 0)
        return left


def _polling(store: Store, settings: Settings) -> Polling:
    return Polling(
        max_consumers=settings.queue_max_consumers,
        interval_ms=settings.queue_poll_interval_ms,
        jitter_ms=settings.queue_poll_jitter_ms,
        resilient_interval_ms=settings.queue_resilient_poll_interval_ms,
        heeds_wakeups=not (settings.disable_mem_queue_watch and _is_memory_store(store)),
    )


def _is_memory_store(store: Store) -> bool:
    from holdfast.stores.memory import MemoryStore

    return isinstance(store, MemoryStore)


def make_store(url: str, settings: Settings, dice: Dice) -> Store:
    """Return the closed store of a URL or a directory. Raise `InvalidArgument` for an unusable URL or setting."""
    kind, _ = parse_store_url(url)
    for name, given in (("redis_url", settings.redis_url), ("wal_dir", settings.wal_dir)):
        if given is not None and kind is not UrlKind.POSTGRES:
            raise InvalidArgument(f"{name} is for a PostgreSQL store: leave it out", field=name)
    # Each store is imported here, because a process uses one of them.
    if url == "memory://":
        from holdfast.stores.memory import MemoryStore

        return MemoryStore(dice, settings.journal_retention_ms)
    if kind is UrlKind.DIRECTORY:
        return _directory_store(url, settings, dice)
    if kind is UrlKind.POSTGRES:
        return _postgres_store([part.strip() for part in url.split(",")], settings, dice)
    if kind is UrlKind.OBJECTS:
        return _object_store(url, settings, dice)
    raise InvalidArgument(
        f"{without_password(url)!r} is not a store this version can open: give a directory, memory://, postgres://, "
        "file:///, s3://, az:// or gs://",
        field="url",
    )


def _directory_store(url: str, settings: Settings, dice: Dice) -> Store:
    from holdfast.stores.rocks import RocksStore
    from holdfast.stores.rocks.engine.engine import Durability
    from holdfast.stores.rocks.legacy.files import is_legacy
    from holdfast.stores.rocks.legacy.online.adoption import is_moving

    make: type[RocksStore] = RocksStore
    if is_legacy(Path(url)) and settings.legacy_read_only:
        from holdfast.stores.rocks.legacy.legacy_store import LegacyStore

        return LegacyStore(url)
    if is_legacy(Path(url)) or is_moving(Path(url)):
        from holdfast.stores.rocks.legacy.online.moving_store import MovingStore

        make = MovingStore
    return make(
        url,
        dice,
        durability=Durability(settings.durability),
        journal_retention_ms=settings.journal_retention_ms,
        shards=settings.shards,
        reopen_after_ms=settings.reopen_after_ms,
        checkpoint_bytes=settings.checkpoint_bytes,
    )


def _object_store(url: str, settings: Settings, dice: Dice) -> Store:
    require_extra("objects", "an object store", "obstore", field="url")
    from holdfast.stores.objects import ObjectStore, make_bucket

    return ObjectStore(
        make_bucket(url, syncs=settings.durability == "fsync"),
        dice,
        journal_retention_ms=settings.journal_retention_ms,
        clock_skew_ms=settings.clock_skew_ms,
        watches=settings.disk_queue_watch,
        poll_ms=settings.queue_poll_interval_ms,
    )


def _postgres_store(urls: list[str], settings: Settings, dice: Dice) -> Store:
    require_extra("postgres", "a PostgreSQL store", field="url")
    from holdfast.stores.postgres import PostgresStore
    from holdfast.stores.postgres.cluster.connection_bounds import ConnectionBounds

    store = PostgresStore(
        urls,
        dice,
        durability=settings.durability,
        journal_retention_ms=settings.journal_retention_ms,
        shard_map=settings.shard_map,
        bounds=ConnectionBounds(
            connections=settings.pg_pool,
            lock_timeout_ms=settings.pg_lock_timeout_ms,
            statement_timeout_ms=settings.pg_statement_timeout_ms,
        ),
    )
    return store if settings.redis_url is None and settings.wal_dir is None else _buffered_store(store, settings)


def _buffered_store(inner: "PostgresStore", settings: Settings) -> Store:
    if settings.redis_url is None or settings.wal_dir is None:
        raise InvalidArgument("the fast path needs both redis_url and wal_dir", field="redis_url")
    require_extra("redis", "the fast path", field="redis_url")
    from holdfast.stores.buffered.fast_path import FastPathOptions
    from holdfast.stores.buffered.store import BufferedStore

    terms = FastPathOptions(
        redis_url=settings.redis_url,
        wal_dir=settings.wal_dir,
        on_redis_down=settings.on_redis_down,
        flusher=settings.flusher,
        flush_batch=settings.flush_batch,
        flush_interval_ms=settings.flush_interval_ms,
        prefetch_batch=settings.prefetch_batch,
        drain_ms=settings.shutdown_grace_ms // 2,
        reopen_after_ms=settings.reopen_after_ms,
    )
    return BufferedStore(inner, terms)
