"""Every metric of a server, declared once."""

from holdfast.telemetry.exposition import MetricFamily, MetricKind

_QUEUE = ("tenant", "queue")

REQUESTS = MetricFamily(
    "holdfast_requests_total",
    MetricKind.COUNTER,
    "Requests answered, by outcome: ok, or the code of the error.",
    ("operation", "outcome", *_QUEUE),
)
REQUEST_SECONDS = MetricFamily(
    "holdfast_request_seconds",
    MetricKind.HISTOGRAM,
    "Time to answer a request, failed ones too; of claim_wait and the streams this includes the waiting.",
    ("operation", *_QUEUE),
)
TRANSITIONS = MetricFamily(
    "holdfast_transitions_total",
    MetricKind.COUNTER,
    "Transitions of messages, as the journal tells them, since the server started.",
    ("event", *_QUEUE),
)
MESSAGES = MetricFamily(
    "holdfast_messages",
    MetricKind.GAUGE,
    "Messages by state: ready (due now), delayed, in_flight, failed.",
    ("state", *_QUEUE),
)
BYTES = MetricFamily("holdfast_queue_bytes", MetricKind.GAUGE, "Payloads and headers stored, in bytes.", _QUEUE)
OLDEST = MetricFamily(
    "holdfast_queue_oldest_ready_age_seconds",
    MetricKind.GAUGE,
    "For how long the oldest ready message has been claimable; of other, the highest.",
    _QUEUE,
)
WAITERS = MetricFamily("holdfast_queue_waiters", MetricKind.GAUGE, "Claims that wait for a message.", _QUEUE)
PAUSED = MetricFamily(
    "holdfast_queue_paused", MetricKind.GAUGE, "1 while claims are paused; of other, while any is.", _QUEUE
)
LIMIT_DECISIONS = MetricFamily(
    "holdfast_limit_decisions_total",
    MetricKind.COUNTER,
    "What admission decided of reads and writes: admitted, waited, limited (over a rate), refused (after a wait).",
    ("kind", "outcome", *_QUEUE),
)
LIMIT_WAIT_SECONDS = MetricFamily(
    "holdfast_limit_wait_seconds",
    MetricKind.HISTOGRAM,
    "Time that calls over a limit waited for their turn.",
    ("kind", *_QUEUE),
)
TURNS_WAITING = MetricFamily(
    "holdfast_turns_waiting",
    MetricKind.GAUGE,
    "Connections whose next request was read from the socket and waits, unparsed, for its tenant's turn.",
)
TURN_WAIT_SECONDS = MetricFamily(
    "holdfast_turn_wait_seconds",
    MetricKind.HISTOGRAM,
    "Time that requests waited at the socket for their tenant's turn; those that did not have to are not in it.",
)
LIMITS_SHARED = MetricFamily(
    "holdfast_limits_shared",
    MetricKind.GAUGE,
    "With Redis: 1 while rates are shared with other servers, 0 while this one goes by its own share.",
)
STORE_UP = MetricFamily("holdfast_store_up", MetricKind.GAUGE, "1 while the store takes calls; 0 once it has stopped.")
STORE_FREE_BYTES = MetricFamily("holdfast_store_free_bytes", MetricKind.GAUGE, "Bytes left on the disk of the store.")
STORE_ACCEPTS_ENQUEUES = MetricFamily(
    "holdfast_store_accepts_enqueues",
    MetricKind.GAUGE,
    "1 while enqueues are accepted; 0 while the store is stopped, or a disk has less free space than the reserve.",
)
STORE_REFUSALS = MetricFamily(
    "holdfast_store_refusals_total", MetricKind.COUNTER, "Enqueues refused because a disk is nearly full."
)
STORE_STOPS = MetricFamily(
    "holdfast_store_stops_total", MetricKind.COUNTER, "Stops of the store after a failed write or sync."
)
WAL_FREE_BYTES = MetricFamily(
    "holdfast_wal_free_bytes", MetricKind.GAUGE, "Bytes free on the disk of the write-ahead log."
)
CLOCK_SKEW = MetricFamily(
    "holdfast_store_clock_skew_seconds",
    MetricKind.GAUGE,
    "Seconds that this server's clock is ahead of an object store's own time, at least; below 0: behind.",
)
STORE_WRITES = MetricFamily(
    "holdfast_store_writes_total",
    MetricKind.COUNTER,
    "Commits handed to the operating system since the store was opened.",
)
STORE_UNWRITTEN_BYTES = MetricFamily(
    "holdfast_store_unwritten_bytes",
    MetricKind.GAUGE,
    "Memory taken by changes that the log has and RocksDB has not, estimated; a checkpoint begins at checkpoint_bytes.",
)
STORE_CHECKPOINTS = MetricFamily(
    "holdfast_store_checkpoints_total", MetricKind.COUNTER, "Checkpoints written to RocksDB since the store was opened."
)
STORE_SYNC_SECONDS = MetricFamily(
    "holdfast_store_sync_seconds",
    MetricKind.HISTOGRAM,
    "Time of each fsync of the log, shared by all who waited for it.",
)
# The fields of FamilyFigures, each per column family.
ROCKSDB = {
    "keys": MetricFamily("holdfast_rocksdb_keys", MetricKind.GAUGE, "Keys, as RocksDB estimates them.", ("family",)),
    "live_bytes": MetricFamily(
        "holdfast_rocksdb_live_bytes", MetricKind.GAUGE, "Live data in files, estimated.", ("family",)
    ),
    "files_bytes": MetricFamily(
        "holdfast_rocksdb_files_bytes", MetricKind.GAUGE, "Size of the table files.", ("family",)
    ),
    "memtable_bytes": MetricFamily(
        "holdfast_rocksdb_memtable_bytes", MetricKind.GAUGE, "Bytes in memtables.", ("family",)
    ),
    "pending_compaction_bytes": MetricFamily(
        "holdfast_rocksdb_pending_compaction_bytes",
        MetricKind.GAUGE,
        "Bytes that compaction has yet to rewrite.",
        ("family",),
    ),
    "level0_files": MetricFamily("holdfast_rocksdb_level0_files", MetricKind.GAUGE, "Files at level 0.", ("family",)),
    "block_cache_bytes": MetricFamily(
        "holdfast_rocksdb_block_cache_bytes", MetricKind.GAUGE, "Bytes in block caches.", ("family",)
    ),
}
QUEUES = MetricFamily("holdfast_queues", MetricKind.GAUGE, "Queues that the last scrape looked at.")
LABEL_SETS = MetricFamily("holdfast_label_sets", MetricKind.GAUGE, "Queues with labels of their own.")
LABEL_SETS_MAX = MetricFamily("holdfast_label_sets_max", MetricKind.GAUGE, "The most of them: metrics_max_labels.")
LOOP_LAG = MetricFamily(
    "holdfast_event_loop_lag_seconds", MetricKind.GAUGE, "The latest that the event loop came since the last scrape."
)
DOOR_PROCESSES = MetricFamily(
    "holdfast_door_processes", MetricKind.GAUGE, "Door processes that serve callers, of a server with `processes`."
)
DOOR_PROCESS_ENDS = MetricFamily(
    "holdfast_door_process_ends_total",
    MetricKind.COUNTER,
    "Door processes that ended while the server was running. Each was replaced by a new one.",
)
DOOR_CPU_SECONDS = MetricFamily(
    "holdfast_door_process_cpu_seconds_total", MetricKind.COUNTER, "CPU time of a door process.", ("process",)
)
BUILD = MetricFamily("holdfast_build_info", MetricKind.GAUGE, "1, labelled with the version.", ("version",))

FAMILIES: tuple[MetricFamily, ...] = (
    *(REQUESTS, REQUEST_SECONDS, TRANSITIONS, MESSAGES, BYTES, OLDEST, WAITERS, PAUSED),
    *(LIMIT_DECISIONS, LIMIT_WAIT_SECONDS, TURNS_WAITING, TURN_WAIT_SECONDS, LIMITS_SHARED),
    *(STORE_UP, STORE_FREE_BYTES, STORE_ACCEPTS_ENQUEUES, STORE_REFUSALS, STORE_STOPS, WAL_FREE_BYTES),
    *(CLOCK_SKEW, STORE_WRITES, STORE_UNWRITTEN_BYTES, STORE_CHECKPOINTS, STORE_SYNC_SECONDS, *ROCKSDB.values()),
    *(QUEUES, LABEL_SETS, LABEL_SETS_MAX, LOOP_LAG, DOOR_PROCESSES, DOOR_PROCESS_ENDS, DOOR_CPU_SECONDS, BUILD),
)
