"""The lake's tables: columns, partitioning, sort order, and the columns with bounds that let readers skip files.

How to change this format: add a nullable column at the end: it is null in older files. Columns are never changed or
removed.
"""

from typing import NamedTuple

import pyarrow as pa

from holdfast.pipeline import schemas
from holdfast.pipeline.schemas import INSTANT, Field, TableSchema

# The partition column of tables with days. It is part of the path, and not in the files.
DAY = "day"
# The SQLite file with the catalog of Iceberg tables.
ICEBERG_CATALOG = "iceberg-catalog.db"


class TableShape(NamedTuple):
    """The columns and the physical layout of a table."""

    table: TableSchema
    # The instant by whose day (UTC) the table is partitioned. None if it is not.
    day_of: str | None
    # The sort order within a file, so that the bounds show which files contain a tenant or a queue.
    sorted_by: tuple[str, ...]
    # Columns whose minimum and maximum are recorded in the log for each file.
    bounds: tuple[str, ...] = ("tenant", "queue")

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def arrow(self) -> pa.Schema:
        """The columns in the table's log, with the day."""
        return self.table.arrow if self.day_of is None else self.table.arrow.append(pa.field(DAY, pa.date32()))


def _table(name: str, **columns: pa.DataType) -> TableSchema:
    return TableSchema(name, tuple(Field(*each) for each in columns.items()))


_TEXT, _INT, _LONG, _SHORT = pa.string(), pa.int32(), pa.int64(), pa.int16()

EVENTS = TableShape(schemas.EVENTS, "at", ("tenant", "queue", "at", "shard", "seq"), ("tenant", "queue", "at"))

# One row for each event that ended a message. A failed message that was redriven has several.
MESSAGES = TableShape(
    _table(
        "messages",
        id=_TEXT,
        tenant=_TEXT,
        queue=_TEXT,
        state=_TEXT,
        priority=_SHORT,
        attempts=_INT,
        version=_LONG,
        enqueued_at=INSTANT,
        claimed_at=INSTANT,
        settled_at=INSTANT,
        wait_ms=_LONG,
        work_ms=_LONG,
        bytes=_LONG,
        error=_TEXT,
        reason=_TEXT,
        correlation_id=_TEXT,
        shard=_INT,
        seq=_LONG,
    ),
    "settled_at",
    ("tenant", "queue", "settled_at", "id"),
    ("tenant", "queue", "settled_at"),
)

_OF_PAYLOADS = (
    *("id", "tenant", "queue", "priority", "enqueued_at", "content_type", "headers", "group", "correlation_id"),
    "payload",
)

# Payloads, which the journal does not have. Written by `drain` and `archive --payloads`.
PAYLOADS = TableShape(
    TableSchema(
        "payloads",
        schemas.MESSAGES.only(_OF_PAYLOADS).fields,
    ),
    "enqueued_at",
    ("tenant", "queue", "id"),
    ("tenant", "queue", "enqueued_at"),
)

COUNTED = (
    *("enqueued", "claimed", "succeeded", "retried", "failed", "expired", "released", "extended", "redriven"),
    *("removed", "moved"),
)

# One row per tenant, queue and minute. `late` counts messages that ended later than promised. Percentiles apply to the
# minute: those of longer times must be computed from the events, and not from these.
MINUTE = TableShape(
    _table(
        "minute",
        tenant=_TEXT,
        queue=_TEXT,
        minute=INSTANT,
        **dict.fromkeys((*COUNTED, "bytes_in", "bytes_out"), _LONG),
        **dict.fromkeys(
            (f"{kind}_{figure}_ms" for kind in ("wait", "work") for figure in ("p50", "p95", "p99", "max")), _LONG
        ),
        late=_LONG,
    ),
    "minute",
    ("tenant", "queue", "minute"),
    ("tenant", "queue", "minute"),
)

# Append-only: changes of a billed day are added as rows of kind `adjustment`.
BILL_DAY = TableShape(
    _table(
        "bill_day",
        date=pa.date32(),
        tenant=_TEXT,
        queue=_TEXT,
        kind=_TEXT,
        **dict.fromkeys(("messages", "deliveries", "bytes_in", "bytes_out"), _LONG),
        written_at=INSTANT,
    ),
    None,
    ("date", "tenant", "queue"),
)

VIOLATIONS = TableShape(
    _table(
        "violations",
        rule=_TEXT,
        tenant=_TEXT,
        queue=_TEXT,
        id=_TEXT,
        detail=_TEXT,
        first_seen=INSTANT,
        run=_TEXT,
    ),
    None,
    ("rule", "tenant", "queue", "id"),
)

TABLES = {shape.name: shape for shape in (EVENTS, MESSAGES, PAYLOADS, MINUTE, BILL_DAY, VIOLATIONS)}
