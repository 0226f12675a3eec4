"""Journal events as Arrow columns, the same from a server and from a reader beside its store."""

ARROW_STREAM = b"application/vnd.apache.arrow.stream"

# Of an answer with events: where the page ends, and how many are on it.
JOURNAL_NEXT = b"x-journal-next"
JOURNAL_COUNT = b"x-journal-count"

# By name of pyarrow's type, and whether it may be null. Instants are whole milliseconds, as everywhere on this wire.
EVENT_FIELDS: dict[str, tuple[str, bool]] = {
    "seq": ("int64", False),
    "shard": ("int32", False),
    "at": ("int64", False),
    "event": ("string", False),
    "tenant": ("string", False),
    "queue": ("string", False),
    "id": ("string", False),
    "attempt": ("int32", False),
    "version": ("int64", False),
    "priority": ("int16", False),
    "enqueued_at": ("int64", False),
    "claimed_at": ("int64", True),
    "bytes": ("int64", False),
    "error": ("string", True),
    "reason": ("string", True),
    "correlation_id": ("string", False),
}
