"""A queue as a stream. A queue is not a log, so an offset is not a position: it is the number of the last claim.

    latestOffset(start)   all claims up to `start` are in Spark's commit log, so they are acked now. An open claim above
                          it was left by a crash, and becomes the next batch. Otherwise messages are claimed under the
                          next numbers. These are durable in the queue's store before Spark records the offset.
    partitions(a, b)      one partition for each claim of the batch
    read(claim)           the messages that the claim still holds. A retried task sees the same messages, except those
                          whose lease was lost meanwhile.
    the heartbeat         extends every open claim while this process is running

A message is acked only while its lease is held, and a lost lease never returns. So the lease was also held when the
message was read, and only messages that the batch has read are acked. A message whose lease was lost after it was read
is delivered again.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holdfast.background import Backoff
from holdfast.client.blocking import Holdfast, Queue
from holdfast.clock import steady_s
from holdfast.model.errors import InvalidArgument, QueueNotFound
from holdfast.model.message import MAX_BATCH
from holdfast.model.names import DEFAULT, QueueRef, parse_ref
from holdfast.model.parsing.checks import check_text
from holdfast.pipeline.schemas import TableSchema
from holdfast.pipeline.sources.options import (
    STORE_OPTIONS,
    StoreAddress,
    count,
    duration,
    parse_options,
    parse_store_address,
    text,
)
from holdfast.pipeline.sources.rows import delivery_batches

OPTIONS = {
    **STORE_OPTIONS,
    "tenant": text,
    "queue": text,
    "consumer": text,
    "lease": duration,
    "maxRows": count,
    "minRows": count,
    "maxDelay": duration,
    "rowsPerPartition": count,
}
_MAX_ROWS = 50_000
_ROWS_PER_PARTITION = 5_000
# Longer than a worker's lease, because a batch is handled as a whole. After a query was killed, its messages wait this
# long for another consumer.
_LEASE_MS = 30_000
_NO_LIMIT = 1 << 62

Offset = dict[str, Any]

# A function that opens a client for a store. It is passed in, because only `server` may import the stores.
OpenClient = Callable[[StoreAddress], Holdfast]


@dataclass(frozen=True)
class QueueOptions:
    """The parsed options of a streaming query."""

    store: StoreAddress
    ref: QueueRef
    consumer: str
    lease_ms: int
    max_rows: int
    min_rows: int
    max_delay_ms: int
    rows_per_partition: int


def parse_stream_options(given: Mapping[str, str]) -> QueueOptions:
    """Parse the options of a streaming query. Raise InvalidArgument for a wrong or missing option."""
    options = parse_options("a holdfast stream", given, OPTIONS)
    if ("minRows" in options) != ("maxDelay" in options):
        raise InvalidArgument(
            "minRows and maxDelay must be given together: wait for minRows rows, but at most for maxDelay"
        )
    if "consumer" not in options:
        raise InvalidArgument(
            "a holdfast stream needs option consumer: the name under which its claims are recorded. Each query needs a "
            "name of its own, and must keep it as long as its checkpoint",
            field="consumer",
        )
    check_text("consumer", options["consumer"])
    lease_ms = options.get("lease", _LEASE_MS)
    if lease_ms < 1_000:
        raise InvalidArgument("option lease is less than a second, which is too short for the heartbeat", field="lease")
    return QueueOptions(
        store=parse_store_address("holdfast", options),
        ref=parse_ref(options.get("tenant", DEFAULT), options.get("queue", DEFAULT)),
        consumer=options["consumer"],
        lease_ms=lease_ms,
        max_rows=options.get("maxRows", _MAX_ROWS),
        min_rows=options.get("minRows", 1),
        max_delay_ms=options.get("maxDelay", 0),
        rows_per_partition=min(options.get("rowsPerPartition", _ROWS_PER_PARTITION), MAX_BATCH),
    )


@dataclass(frozen=True)
class Claim(InputPartition):
    """A numbered claim of the consumer, which is read by one task."""

    number: int


class ClaimStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of a query. It runs in a separate process beside the driver, and a copy is sent to each task."""

    def __init__(self, options: QueueOptions, columns: TableSchema, open_client: OpenClient) -> None:
        self._options = options
        self._columns = columns
        self._open_client = open_client
        self._client: Holdfast | None = None
        self._heartbeat: LedgerHeartbeat | None = None
        # False until the ledger was read: an earlier process may have left open claims. Also false after a failure.
        self._knows_open = False
        self._pending_since: float | None = None
        # With the trigger availableNow: how many more messages this query may claim.
        self._budget: int | None = None
        self._latest: Offset | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy only the options to a task, which needs neither the connection nor the thread."""
        return ClaimStreamReader, (self._options, self._columns, self._open_client)

    # --- In the driver -----------------------------------------------------------------------------------------

    @property
    def _queue(self) -> Queue:
        if self._client is None:
            self._client = self._open_client(self._options.store)
        ref = self._options.ref
        return self._client.queue(ref.queue, tenant=ref.tenant)

    def initialOffset(self) -> Offset:
        """Return the offset of a query without a checkpoint. Open claims of the consumer become its next batch."""
        open_numbers = self._open_numbers(-1)
        return _offset(min(open_numbers) - 1 if open_numbers else 0, [])

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to as many messages as are ready now. The queue's order determines which ones."""
        self._budget = self._ready()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        most = _NO_LIMIT if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_rows", self._options.max_rows)
        done = start["claim"]
        self._ack(done)
        if not self._knows_open and (open_numbers := self._open_numbers(done)):
            return self._begin_batch(_offset(max(open_numbers), open_numbers), 0)
        self._knows_open = True
        if self._budget is not None:
            most = min(most, self._budget)
        if not most or self._waits_for_more(most):
            return start
        claims, claimed = self._claim(done, most)
        if not claims:
            self._latest = {**start, "ready": 0}
            return start
        return self._begin_batch(_offset(claims[-1], claims), claimed)

    def _begin_batch(self, end: Offset, claimed: int) -> Offset:
        self._keep_alive()
        if self._budget is not None:
            self._budget = max(0, self._budget - claimed)
        self._pending_since = None
        self._latest = {**end, "ready": self._ready()}
        return end

    def _ack(self, upto: int) -> None:
        if upto <= 0:
            return
        try:
            self._queue.ledger_ack(self._options.consumer, upto)
        except QueueNotFound:
            return  # the queue was deleted with its messages

    def _open_numbers(self, above: int) -> list[int]:
        try:
            entries = self._queue.ledger(self._options.consumer)
        except QueueNotFound:
            return []
        return [each.number for each in entries if each.number > above]

    def _claim(self, done: int, most: int) -> tuple[list[int], int]:
        """Claim up to `most` messages under as many numbers as needed. After a failure, open claims are read later."""
        options = self._options
        number, claims, claimed = done + 1, list[int](), 0
        self._knows_open = False
        while claimed < most:
            limit = min(options.rows_per_partition, most - claimed)
            try:
                held = self._queue.claim(
                    limit, lease=options.lease_ms / 1_000, owner=options.consumer, ledger=(options.consumer, number)
                )
            except InvalidArgument as refused:
                closed_upto = refused.facts.get("closed_upto")
                if not isinstance(closed_upto, int) or claims:
                    raise
                # The checkpoint is new, or older than the ledger: continue after the numbers that are already acked.
                number = closed_upto + 1
                continue
            if not held:
                break
            claims.append(number)
            claimed += len(held)
            number += 1
            if len(held) < limit:
                break
        self._knows_open = True
        return claims, claimed

    def _waits_for_more(self, most: int) -> bool:
        if self._budget is not None or self._options.min_rows <= 1:
            return False
        ready = self._ready()
        if ready >= min(self._options.min_rows, most):
            return False
        now = steady_s()
        if self._pending_since is None or not ready:
            self._pending_since = now
        return (now - self._pending_since) * 1_000 < self._options.max_delay_ms

    def _ready(self) -> int:
        try:
            return self._queue.stats().ready
        except QueueNotFound:
            return 0

    def reportLatestOffset(self) -> Offset | None:
        return self._latest

    def partitions(self, start: Offset, end: Offset) -> list[Claim]:
        self._keep_alive()
        return [Claim(number) for number in end["claims"]]

    def commit(self, end: Offset) -> None:
        """Do nothing: `latestOffset` has acked the batch. Spark calls this after it planned the next batch, if any."""

    def _keep_alive(self) -> None:
        if self._heartbeat is None:
            self._heartbeat = LedgerHeartbeat(self._options, self._open_client)

    def stop(self) -> None:
        """Close the connections. Claims of the current batch stay open, because Spark may not have committed it yet."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._client is not None:
            self._client.close()

    # --- In a task ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Claim)
        options = self._options
        with self._open_client(options.store) as client:
            queue = client.queue(options.ref.queue, tenant=options.ref.tenant)
            entries = queue.ledger(options.consumer, partition.number)
            if not entries:
                raise InvalidArgument(
                    f"claim {partition.number} of consumer {options.consumer!r} is closed: its messages were acked. "
                    "Another query may use the same consumer, or the checkpoint may be outdated"
                )
            for entry in entries:
                yield from delivery_batches(options.ref, entry.deliveries, self._columns)


class LedgerHeartbeat:
    """Extends all open claims of a consumer, in a thread with its own connection."""

    def __init__(self, options: QueueOptions, open_client: OpenClient) -> None:
        self._options = options
        self._open_client = open_client
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        self._thread.join(self._options.lease_ms / 1_000)

    def _run(self) -> None:
        """Extend the claims until `stop`. Reconnect after an error, because without a heartbeat the claims are lost."""
        period_ms = self._options.lease_ms // 3
        backoff = Backoff("heartbeat", longest_ms=max(period_ms, 1), queue=self._options.ref)
        pause_ms = 0
        while not self._is_stopped.wait(pause_ms / 1_000):
            try:
                self._beat(period_ms / 1_000, backoff)
            except Exception as error:
                pause_ms = backoff.failed(error, consumer=self._options.consumer)

    def _beat(self, period_s: float, backoff: Backoff) -> None:
        options = self._options
        with self._open_client(options.store) as client:
            queue = client.queue(options.ref.queue, tenant=options.ref.tenant)
            while not self._is_stopped.wait(period_s):
                queue.ledger_extend(options.consumer, options.lease_ms / 1_000)
                backoff.succeeded()


def _offset(claim: int, claims: list[int]) -> Offset:
    """Return an offset for a checkpoint: the last claim, and the claims of the batch.

    How to change this format: increase `v`, and keep reading old versions: later releases read existing checkpoints.
    """
    return {"v": 1, "claim": claim, "claims": claims}
