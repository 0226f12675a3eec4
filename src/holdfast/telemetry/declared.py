"""Every metric of a server, declared once."""

from holdfast.telemetry.exposition import Family, Kind

_QUEUE = ("tenant", "queue")

REQUESTS = Family(
    "holdfast_requests_total",
    Kind.COUNTER,
    "Requests answered, by outcome: ok, or the code of the error.",
    ("operation", "outcome", *_QUEUE),
)
REQUEST_SECONDS = Family(
    "holdfast_request_seconds",
    Kind.HISTOGRAM,
    "Time to answer a request, failed ones too; of claim_wait and the streams this includes the waiting.",
    ("operation", *_QUEUE),
)
TRANSITIONS = Family(
    "holdfast_transitions_total",
    Kind.COUNTER,
    "Transitions of messages, as the journal tells them, since the server started.",
    ("event", *_QUEUE),
)
MESSAGES = Family(
    "holdfast_messages",
    Kind.GAUGE,
    "Messages by state: ready (due now), delayed, in_flight, failed.",
    ("state", *_QUEUE),
)
BYTES = Family("holdfast_queue_bytes", Kind.GAUGE, "Payloads and headers stored, in bytes.", _QUEUE)
OLDEST = Family(
    "holdfast_queue_oldest_ready_age_seconds",
    Kind.GAUGE,
    "For how long the oldest ready message has been claimable; of other, the highest.",
    _QUEUE,
)
WAITERS = Family("holdfast_queue_waiters", Kind.GAUGE, "Claims that wait for a message.", _QUEUE)
PAUSED = Family("holdfast_queue_paused", Kind.GAUGE, "1 while claims are paused; of other, while any is.", _QUEUE)
LIMIT_DECISIONS = Family(
    "holdfast_limit_decisions_total",
    Kind.COUNTER,
    "What admission decided of reads and writes: admitted, waited, limited (over a rate), refused (after a wait).",
    ("kind", "outcome", *_QUEUE),
)
LIMIT_WAIT_SECONDS = Family(
    "holdfast_limit_wait_seconds",
    Kind.HISTOGRAM,
    "Time that calls over a limit waited for their turn.",
    ("kind", *_QUEUE),
)
TURNS_WAITING = Family(
    "holdfast_turns_waiting",
    Kind.GAUGE,
    "Connections whose next request was read from the socket and waits, unparsed, for its tenant's turn.",
)
TURN_WAIT_SECONDS = Family(
    "holdfast_turn_wait_seconds",
    Kind.HISTOGRAM,
    "Time that requests waited at the socket for their tenant's turn; those that did not have to are not in it.",
)
LIMITS_SHARED = Family(
    "holdfast_limits_shared",
    Kind.GAUGE,
    "With Redis: 1 while rates are shared with other servers, 0 while this one goes by its own share.",
)
STORE_UP = Family("holdfast_store_up", Kind.GAUGE, "1 while the store takes calls; 0 once it has stopped.")
STORE_FREE_BYTES = Family("holdfast_store_free_bytes", Kind.GAUGE, "Bytes left on the disk of the store.")
STORE_ACCEPTS_ENQUEUES = Family(
    "holdfast_store_accepts_enqueues",
    Kind.GAUGE,
    "1 while enqueues are accepted; 0 while the store is stopped, or a disk has less free space than the reserve.",
)
STORE_REFUSALS = Family(
    "holdfast_store_refusals_total", Kind.COUNTER, "Enqueues refused because a disk is nearly full."
)
STORE_STOPS = Family("holdfast_store_stops_total", Kind.COUNTER, "Stops of the store after a failed write or sync.")
WAL_FREE_BYTES = Family("holdfast_wal_free_bytes", Kind.GAUGE, "Bytes free on the disk of the write-ahead log.")
CLOCK_SKEW = Family(
    "holdfast_store_clock_skew_seconds",
    Kind.GAUGE,
    "Seconds that this server's clock is ahead of an object store's own time, at least; below 0: behind.",
)
STORE_WRITES = Family(
    "holdfast_store_writes_total", Kind.COUNTER, "Commits handed to the operating system since the store was opened."
)
STORE_UNWRITTEN_BYTES = Family(
    "holdfast_store_unwritten_bytes",
    Kind.GAUGE,
    "Memory taken by changes that the log has and RocksDB has not, estimated; a checkpoint begins at checkpoint_bytes.",
)
STORE_CHECKPOINTS = Family(
    "holdfast_store_checkpoints_total", Kind.COUNTER, "Checkpoints written to RocksDB since the store was opened."
)
STORE_SYNC_SECONDS = Family(
    "holdfast_store_sync_seconds", Kind.HISTOGRAM, "Time of each fsync of the log, shared by all who waited for it."
)
# The fields of FamilyFigures, each per column family.
ROCKSDB = {
    "keys": Family("holdfast_rocksdb_keys", Kind.GAUGE, "Keys, as RocksDB estimates them.", ("family",)),
    "live_bytes": Family("holdfast_rocksdb_live_bytes", Kind.GAUGE, "Live data in files, estimated.", ("family",)),
    "files_bytes": Family("holdfast_rocksdb_files_bytes", Kind.GAUGE, "Size of the table files.", ("family",)),
    "memtable_bytes": Family("holdfast_rocksdb_memtable_bytes", Kind.GAUGE, "Bytes in memtables.", ("family",)),
    "pending_compaction_bytes": Family(
        "holdfast_rocksdb_pending_compaction_bytes",
        Kind.GAUGE,
        "Bytes that compaction has yet to rewrite.",
        ("family",),
    ),
    "level0_files": Family("holdfast_rocksdb_level0_files", Kind.GAUGE, "Files at level 0.", ("family",)),
    "block_cache_bytes": Family(
        "holdfast_rocksdb_block_cache_bytes", Kind.GAUGE, "Bytes in block caches.", ("family",)
    ),
}
QUEUES = Family("holdfast_queues", Kind.GAUGE, "Queues that the last scrape looked at.")
LABEL_SETS = Family("holdfast_label_sets", Kind.GAUGE, "Queues with labels of their own.")
LABEL_SETS_MAX = Family("holdfast_label_sets_max", Kind.GAUGE, "The most of them: metrics_max_labels.")
LOOP_LAG = Family(
    "holdfast_event_loop_lag_seconds", Kind.GAUGE, "The latest that the event loop came since the last scrape."
)
BUILD = Family("holdfast_build_info", Kind.GAUGE, "1, labelled with the version.", ("version",))

FAMILIES: tuple[Family, ...] = (
    *(REQUESTS, REQUEST_SECONDS, TRANSITIONS, MESSAGES, BYTES, OLDEST, WAITERS, PAUSED),
    *(LIMIT_DECISIONS, LIMIT_WAIT_SECONDS, TURNS_WAITING, TURN_WAIT_SECONDS, LIMITS_SHARED),
    *(STORE_UP, STORE_FREE_BYTES, STORE_ACCEPTS_ENQUEUES, STORE_REFUSALS, STORE_STOPS, WAL_FREE_BYTES),
    *(CLOCK_SKEW, STORE_WRITES, STORE_UNWRITTEN_BYTES, STORE_CHECKPOINTS, STORE_SYNC_SECONDS, *ROCKSDB.values()),
    *(QUEUES, LABEL_SETS, LABEL_SETS_MAX, LOOP_LAG, BUILD),
)
