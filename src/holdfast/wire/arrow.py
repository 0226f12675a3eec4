"""The Arrow columns of journal events, the same from a server and from the readers that open a store themselves."""

ARROW_STREAM = b"application/vnd.apache.arrow.stream"

# Response headers: the position after the last event of the page, and the number of events on it.
JOURNAL_NEXT = b"x-journal-next"
JOURNAL_COUNT = b"x-journal-count"

# For each column: the name of its pyarrow type, and whether it may be null. Instants are whole milliseconds since 1970.
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
