"""A queue as a stream. A queue is no log, so an offset is no position: it is the number of the last claim.

    latestOffset(start)   everything up to `start` is in Spark's commit log, so it is acked now. A claim above it that
                          is open was left by a crash, and is the next batch. Otherwise messages are claimed under the
                          next numbers: durable in the queue's own store before Spark writes the offset down.
    partitions(a, b)      one for each claim of the batch
    read(claim)           what the claim still holds. A retried task sees the same, less what was lost since.
    a heartbeat           extends every open claim while this process lives

What is acked was held at the ack; a lease that was lost never comes back; so it was held when it was read, too:
nothing is acked that the batch had not read. A message whose lease was lost after it was read is delivered again.
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
from holdfast.pipeline.sources.options import PLACE, StoreAddress, count, duration, parse_options, place_of, text
from holdfast.pipeline.sources.rows import delivery_batches

OPTIONS = {
    **PLACE,
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
# Longer than a worker's: a batch is worked on as a whole. The heartbeat keeps it, so it is how long a killed query's
# messages wait for another consumer.
_LEASE_MS = 30_000
_NO_LIMIT = 1 << 62

Offset = dict[str, Any]

# Opens a queue of a place. Handed in: only `server` knows the stores.
OpenClient = Callable[[StoreAddress], Holdfast]


@dataclass(frozen=True)
class QueueOptions:
    """What a query wants of a queue: its options, parsed."""

    place: StoreAddress
    ref: QueueRef
    consumer: str
    lease_ms: int
    max_rows: int
    min_rows: int
    max_delay_ms: int
    rows_per_partition: int


def claiming_of(given: Mapping[str, str]) -> QueueOptions:
    options = parse_options("a holdfast stream", given, OPTIONS)
    if ("minRows" in options) != ("maxDelay" in options):
        raise InvalidArgument("minRows and maxDelay go together: the one says what to wait for, the other how long")
    if "consumer" not in options:
        raise InvalidArgument(
            "a holdfast stream needs option consumer: the name its claims are kept under. Each query has its own, and "
            "keeps it as it keeps its checkpoint",
            field="consumer",
        )
    check_text("consumer", options["consumer"])
    lease_ms = options.get("lease", _LEASE_MS)
    if lease_ms < 1_000:
        raise InvalidArgument("option lease is under a second: a heartbeat could not keep it", field="lease")
    return QueueOptions(
        place=place_of("holdfast", options),
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
    number: int


class ClaimStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process of its own beside the driver, as long as the query. A copy of it goes to each task."""

    def __init__(self, claiming: QueueOptions, columns: TableSchema, open_client: OpenClient) -> None:
        self._claiming = claiming
        self._columns = columns
        self._open_client = open_client
        self._client: Holdfast | None = None
        self._heartbeat: LedgerHeartbeat | None = None
        # Until the ledger was looked at, claims of an earlier process may be open; and so they may after a failure.
        self._knows_open = False
        self._pending_since: float | None = None
        # With availableNow: how many more messages this query takes.
        self._budget: int | None = None
        self._latest: Offset | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A task reads claims and needs no more: no connection, no thread goes along."""
        return ClaimStreamReader, (self._claiming, self._columns, self._open_client)

    # --- In the driver -----------------------------------------------------------------------------------------

    @property
    def _queue(self) -> Queue:
        if self._client is None:
            self._client = self._open_client(self._claiming.place)
        ref = self._claiming.ref
        return self._client.queue(ref.queue, tenant=ref.tenant)

    def initialOffset(self) -> Offset:
        """Without a checkpoint. Claims that are still open are this consumer's next batch all the same."""
        open_numbers = self._open_numbers(-1)
        return _offset(min(open_numbers) - 1 if open_numbers else 0, [])

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._claiming.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """As many as are ready now. Which ones is the queue's order to say, as ever."""
        self._budget = self._ready()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        most = _NO_LIMIT if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_rows", self._claiming.max_rows)
        done = start["claim"]
        self._ack(done)
        if not self._knows_open and (left := self._open_numbers(done)):
            return self._begun(_offset(max(left), left), 0)
        self._knows_open = True
        if self._budget is not None:
            most = min(most, self._budget)
        if not most or self._waits_for_more(most):
            return start
        claims, taken = self._claim(done, most)
        if not claims:
            self._latest = {**start, "ready": 0}
            return start
        return self._begun(_offset(claims[-1], claims), taken)

    def _begun(self, end: Offset, taken: int) -> Offset:
        self._keep_alive()
        if self._budget is not None:
            self._budget = max(0, self._budget - taken)
        self._pending_since = None
        self._latest = {**end, "ready": self._ready()}
        return end

    def _ack(self, upto: int) -> None:
        if upto <= 0:
            return
        try:
            self._queue.ledger_ack(self._claiming.consumer, upto)
        except QueueNotFound:
            return  # deleted, and its messages with it

    def _open_numbers(self, above: int) -> list[int]:
        try:
            entries = self._queue.ledger(self._claiming.consumer)
        except QueueNotFound:
            return []
        return [each.number for each in entries if each.number > above]

    def _claim(self, done: int, most: int) -> tuple[list[int], int]:
        """Up to `most` messages under as many numbers as it takes; a failure half-way leaves claims for later."""
        claiming = self._claiming
        number, claims, taken = done + 1, list[int](), 0
        self._knows_open = False
        while taken < most:
            limit = min(claiming.rows_per_partition, most - taken)
            try:
                held = self._queue.claim(
                    limit, lease=claiming.lease_ms / 1_000, owner=claiming.consumer, ledger=(claiming.consumer, number)
                )
            except InvalidArgument as refused:
                closed_upto = refused.facts.get("closed_upto")
                if not isinstance(closed_upto, int) or claims:
                    raise
                # The checkpoint is new, or older than the ledger: what was acked is behind us.
                number = closed_upto + 1
                continue
            if not held:
                break
            claims.append(number)
            taken += len(held)
            number += 1
            if len(held) < limit:
                break
        self._knows_open = True
        return claims, taken

    def _waits_for_more(self, most: int) -> bool:
        if self._budget is not None or self._claiming.min_rows <= 1:
            return False
        ready = self._ready()
        if ready >= min(self._claiming.min_rows, most):
            return False
        now = steady_s()
        if self._pending_since is None or not ready:
            self._pending_since = now
        return (now - self._pending_since) * 1_000 < self._claiming.max_delay_ms

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
        """Spark calls this once the next batch is planned, which for the last batch is never: `latestOffset` has acked
        it by then."""

    def _keep_alive(self) -> None:
        if self._heartbeat is None:
            self._heartbeat = LedgerHeartbeat(self._claiming, self._open_client)

    def stop(self) -> None:
        """Claims of a batch that is under way stay open: whether Spark has committed it is not ours to know."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._client is not None:
            self._client.close()

    # --- In a task ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Claim)
        claiming = self._claiming
        with self._open_client(claiming.place) as client:
            queue = client.queue(claiming.ref.queue, tenant=claiming.ref.tenant)
            entries = queue.ledger(claiming.consumer, partition.number)
            if not entries:
                raise InvalidArgument(
                    f"claim {partition.number} of consumer {claiming.consumer!r} is closed: its messages were acked. "
                    "Is another query using the same consumer, or the checkpoint an old one?"
                )
            for entry in entries:
                yield from delivery_batches(claiming.ref, entry.deliveries, self._columns)


class LedgerHeartbeat:
    """Extends all open claims of a consumer, from a thread and a connection of its own."""

    def __init__(self, claiming: QueueOptions, open_client: OpenClient) -> None:
        self._claiming = claiming
        self._open_client = open_client
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(self._claiming.lease_ms / 1_000)

    def _run(self) -> None:
        """Until `stop`, over a new connection after an error: a leader that lost its heartbeat loses its claims."""
        period_ms = self._claiming.lease_ms // 3
        backoff = Backoff("heartbeat", longest_ms=max(period_ms, 1), queue=self._claiming.ref)
        pause_ms = 0
        while not self._is_over.wait(pause_ms / 1_000):
            try:
                self._beat(period_ms / 1_000, backoff)
            except Exception as error:
                pause_ms = backoff.failed(error, consumer=self._claiming.consumer)

    def _beat(self, period_s: float, backoff: Backoff) -> None:
        claiming = self._claiming
        with self._open_client(claiming.place) as client:
            queue = client.queue(claiming.ref.queue, tenant=claiming.ref.tenant)
            while not self._is_over.wait(period_s):
                queue.ledger_extend(claiming.consumer, claiming.lease_ms / 1_000)
                backoff.succeeded()


def _offset(claim: int, claims: list[int]) -> Offset:
    return {"v": 1, "claim": claim, "claims": claims}
