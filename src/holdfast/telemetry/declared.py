"""The declarations of all metrics of a server."""

from holdfast.telemetry.exposition import MetricFamily, MetricKind

_QUEUE = ("tenant", "queue")

REQUESTS = MetricFamily(
    "holdfast_requests_total",
    MetricKind.COUNTER,
    "Finished requests by outcome: ok, or the code of the error.",
    ("operation", "outcome", *_QUEUE),
)
REQUEST_SECONDS = MetricFamily(
    "holdfast_request_seconds",
    MetricKind.HISTOGRAM,
    "Duration of requests, including failed ones. For claim_wait and streams it includes the time spent waiting.",
    ("operation", *_QUEUE),
)
TRANSITIONS = MetricFamily(
    "holdfast_transitions_total",
    MetricKind.COUNTER,
    "Transitions of messages since the server started, by journal event.",
    ("event", *_QUEUE),
)
MESSAGES = MetricFamily(
    "holdfast_messages",
    MetricKind.GAUGE,
    "Messages by state: ready (due now), delayed, in_flight, failed.",
    ("state", *_QUEUE),
)
BYTES = MetricFamily("holdfast_queue_bytes", MetricKind.GAUGE, "Size of the stored payloads and headers.", _QUEUE)
OLDEST = MetricFamily(
    "holdfast_queue_oldest_ready_age_seconds",
    MetricKind.GAUGE,
    "Time for which the oldest ready message has been claimable. For the queue other: the highest of its queues.",
    _QUEUE,
)
WAITERS = MetricFamily("holdfast_queue_waiters", MetricKind.GAUGE, "Claims waiting for a message.", _QUEUE)
PAUSED = MetricFamily(
    "holdfast_queue_paused",
    MetricKind.GAUGE,
    "1 if claims are paused, else 0. For the queue other: 1 if any of its queues is paused.",
    _QUEUE,
)
LIMIT_DECISIONS = MetricFamily(
    "holdfast_limit_decisions_total",
    MetricKind.COUNTER,
    "Admission decisions: admitted, waited (then admitted), limited (over a rate), refused (waited too long).",
    ("kind", "outcome", *_QUEUE),
)
LIMIT_WAIT_SECONDS = MetricFamily(
    "holdfast_limit_wait_seconds",
    MetricKind.HISTOGRAM,
    "Time that calls waited for admission: over a limit on concurrent calls, or for the turn of their tenant.",
    ("kind", *_QUEUE),
)
TURNS_WAITING = MetricFamily(
    "holdfast_turns_waiting",
    MetricKind.GAUGE,
    "Connections with an unparsed request that waits for its tenant's turn.",
)
TURN_WAIT_SECONDS = MetricFamily(
    "holdfast_turn_wait_seconds",
    MetricKind.HISTOGRAM,
    "Time that unparsed requests waited for their tenant's turn. Requests that did not wait are not counted.",
)
LIMITS_SHARED = MetricFamily(
    "holdfast_limits_shared",
    MetricKind.GAUGE,
    "With Redis: 1 while rates are shared with other servers, 0 while this server applies its own share.",
)
STORE_UP = MetricFamily("holdfast_store_up", MetricKind.GAUGE, "1 while the store takes calls, 0 once it has stopped.")
STORE_PROBLEMS = MetricFamily(
    "holdfast_store_problems",
    MetricKind.GAUGE,
    "Number of things that are wrong although the store takes calls. `/readyz` names them.",
)
STORE_CONNECTIONS = MetricFamily(
    "holdfast_store_connections", MetricKind.GAUGE, "Maximum number of connections to the store's databases."
)
STORE_CONNECTIONS_IN_USE = MetricFamily(
    "holdfast_store_connections_in_use", MetricKind.GAUGE, "Connections to the store's databases that calls use."
)
STORE_CONNECTION_WAITS = MetricFamily(
    "holdfast_store_connection_waits", MetricKind.GAUGE, "Calls that wait for a connection to a database."
)
STORE_LOCK_TIMEOUTS = MetricFamily(
    "holdfast_store_lock_timeouts_total",
    MetricKind.COUNTER,
    "Calls that gave up waiting for a lock that another transaction held.",
)
STORE_CONNECTION_FAILURES = MetricFamily(
    "holdfast_store_connection_failures_total", MetricKind.COUNTER, "Connections to a database that failed."
)
STORE_FREE_BYTES = MetricFamily("holdfast_store_free_bytes", MetricKind.GAUGE, "Free space on the disk of the store.")
STORE_ACCEPTS_ENQUEUES = MetricFamily(
    "holdfast_store_accepts_enqueues",
    MetricKind.GAUGE,
    "1 while enqueues are accepted, 0 while the store is stopped or a disk has less free space than the reserve.",
)
STORE_REFUSALS = MetricFamily(
    "holdfast_store_refusals_total", MetricKind.COUNTER, "Enqueues refused because a disk is nearly full."
)
STORE_STOPS = MetricFamily(
    "holdfast_store_stops_total", MetricKind.COUNTER, "Stops of the store after a failed write or sync."
)
WAL_FREE_BYTES = MetricFamily(
    "holdfast_wal_free_bytes", MetricKind.GAUGE, "Free space on the disk of the write-ahead log."
)
CLOCK_SKEW = MetricFamily(
    "holdfast_store_clock_skew_seconds",
    MetricKind.GAUGE,
    "Minimum time by which this server's clock is ahead of the object store's; negative if it is behind.",
)
STORE_WRITES = MetricFamily(
    "holdfast_store_writes_total",
    MetricKind.COUNTER,
    "Commits written to the operating system since the store was opened.",
)
STORE_LEGACY_MESSAGES = MetricFamily(
    "holdfast_store_legacy_messages", MetricKind.GAUGE, "Messages that are still to be moved from the legacy layout."
)
STORE_UNWRITTEN_BYTES = MetricFamily(
    "holdfast_store_unwritten_bytes",
    MetricKind.GAUGE,
    "Estimated memory used by changes in the log that are not yet in RocksDB. At checkpoint_bytes they are written.",
)
STORE_CHECKPOINTS = MetricFamily(
    "holdfast_store_checkpoints_total", MetricKind.COUNTER, "Checkpoints written to RocksDB since the store was opened."
)
STORE_SYNC_SECONDS = MetricFamily(
    "holdfast_store_sync_seconds",
    MetricKind.HISTOGRAM,
    "Duration of each fsync of the log. Several calls may share one.",
)
# Metrics by field of FamilyFigures. Each is measured per column family.
ROCKSDB = {
    "keys": MetricFamily("holdfast_rocksdb_keys", MetricKind.GAUGE, "Keys, estimated by RocksDB.", ("family",)),
    "live_bytes": MetricFamily(
        "holdfast_rocksdb_live_bytes", MetricKind.GAUGE, "Estimated size of the live data in files.", ("family",)
    ),
    "files_bytes": MetricFamily(
        "holdfast_rocksdb_files_bytes", MetricKind.GAUGE, "Size of the table files.", ("family",)
    ),
    "memtable_bytes": MetricFamily(
        "holdfast_rocksdb_memtable_bytes", MetricKind.GAUGE, "Size of the memtables.", ("family",)
    ),
    "pending_compaction_bytes": MetricFamily(
        "holdfast_rocksdb_pending_compaction_bytes",
        MetricKind.GAUGE,
        "Data that compaction has still to rewrite.",
        ("family",),
    ),
    "level0_files": MetricFamily("holdfast_rocksdb_level0_files", MetricKind.GAUGE, "Files at level 0.", ("family",)),
    "block_cache_bytes": MetricFamily(
        "holdfast_rocksdb_block_cache_bytes", MetricKind.GAUGE, "Size of the block caches.", ("family",)
    ),
}
ROCKSDB_HOT_SHARE = MetricFamily(
    "holdfast_rocksdb_hot_queue_share",
    MetricKind.GAUGE,
    "Share of the recent reads or writes of a column family, estimated from samples, of its ten busiest queues.",
    ("family", "access", *_QUEUE),
)
QUEUES = MetricFamily("holdfast_queues", MetricKind.GAUGE, "Queues that the last scrape read.")
LABEL_SETS = MetricFamily("holdfast_label_sets", MetricKind.GAUGE, "Queues with labels of their own.")
LABEL_SETS_MAX = MetricFamily(
    "holdfast_label_sets_max",
    MetricKind.GAUGE,
    "Maximum number of queues with labels of their own: metrics_max_labels.",
)
LOOP_LAG = MetricFamily(
    "holdfast_event_loop_lag_seconds", MetricKind.GAUGE, "Highest lag of the event loop since the last scrape."
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
STORE_PROCESSES = MetricFamily(
    "holdfast_store_processes", MetricKind.GAUGE, "Store processes that answered the scrape, of a server with `stores`."
)
STORE_PROCESS_ENDS = MetricFamily(
    "holdfast_store_process_ends_total",
    MetricKind.COUNTER,
    "Store processes that ended while the server was running. Each was replaced by a new one.",
)
STORE_CPU_SECONDS = MetricFamily(
    "holdfast_store_process_cpu_seconds_total",
    MetricKind.COUNTER,
    "CPU time of a store process, except the first one.",
    ("process",),
)
BUILD = MetricFamily("holdfast_build_info", MetricKind.GAUGE, "Always 1; the label has the version.", ("version",))

FAMILIES: tuple[MetricFamily, ...] = (
    *(REQUESTS, REQUEST_SECONDS, TRANSITIONS, MESSAGES, BYTES, OLDEST, WAITERS, PAUSED),
    *(LIMIT_DECISIONS, LIMIT_WAIT_SECONDS, TURNS_WAITING, TURN_WAIT_SECONDS, LIMITS_SHARED),
    *(STORE_UP, STORE_PROBLEMS, STORE_CONNECTIONS, STORE_CONNECTIONS_IN_USE, STORE_CONNECTION_WAITS),
    *(STORE_LOCK_TIMEOUTS, STORE_CONNECTION_FAILURES),
    *(STORE_FREE_BYTES, STORE_ACCEPTS_ENQUEUES, STORE_REFUSALS, STORE_STOPS, WAL_FREE_BYTES),
    *(
        CLOCK_SKEW,
        STORE_WRITES,
        STORE_LEGACY_MESSAGES,
        STORE_UNWRITTEN_BYTES,
        STORE_CHECKPOINTS,
        STORE_SYNC_SECONDS,
        *ROCKSDB.values(),
    ),
    ROCKSDB_HOT_SHARE,
    *(QUEUES, LABEL_SETS, LABEL_SETS_MAX, LOOP_LAG, DOOR_PROCESSES, DOOR_PROCESS_ENDS, DOOR_CPU_SECONDS),
    *(STORE_PROCESSES, STORE_PROCESS_ENDS, STORE_CPU_SECONDS, BUILD),
)
