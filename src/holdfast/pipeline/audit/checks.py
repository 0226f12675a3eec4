"""The checks of the rules, on the events of suspect messages: each event is compared with the previous one.

Rules that need more than the previous event use running values over the same order. Only violations are returned, so
the result is as long as their list.
"""

from contextlib import ExitStack
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from holdfast.model.events import Event
from holdfast.model.message import State
from holdfast.pipeline.audit.rules import AFTER_NAMES, ENDED, GONE, NEXT, OF_A_LEASE, Rule
from holdfast.pipeline.audit.screen import ID, NAME, find_suspects, find_unusual, hash_of_id

# Up to this many suspects are broadcast to every worker. More are joined by a shuffle.
_FEW = 1_000_000

_VIOLATIONS = "rule string, tenant string, queue string, id string, detail string, first_seen timestamp"

_VERDICTS = [each.value for each in OF_A_LEASE]


class AuditExtent(NamedTuple):
    """The extent of a journal, from one aggregate over it."""

    events: int
    # The time of the first event, in milliseconds. Messages that were enqueued before it may be missing.
    start_ms: int
    shards: int


def measure(events: DataFrame) -> AuditExtent:
    """Read the extent of a journal."""
    [row] = events.agg(
        F.count(F.lit(1)).alias("events"),
        F.min(F.unix_millis("at")).alias("start_ms"),
        F.min("shard").alias("first"),
        F.max("shard").alias("last"),
    ).collect()
    return AuditExtent(row["events"], row["start_ms"] or 0, 1 if row["first"] == row["last"] else 2)


def check_events(
    events: DataFrame, extent: AuditExtent | None = None, max_retries: int | None = None, *, cleanup: ExitStack
) -> DataFrame:
    """Return a row (rule, tenant, queue, id, detail, first_seen) for each violation.

    The screen runs at once. `cleanup` releases the frames that it caches.
    """
    unusual = _select(events, find_unusual(events), cleanup)
    chosen = None if unusual is None else _select(unusual, find_suspects(unusual), cleanup)
    # A message with a plain life has at most two attempts.
    spenders = unusual if max_retries is not None and max_retries >= 2 else events
    if max_retries is None:
        spenders = None
    if extent is None:
        # Without suspects the extent is not needed.
        extent = measure(events) if chosen is not None or spenders is not None else AuditExtent(0, 0, 1)
    violations = events.sparkSession.createDataFrame([], _VIOLATIONS) if chosen is None else check_rules(chosen, extent)
    if spenders is None or max_retries is None:
        return violations
    return violations.unionByName(_over_budget(spenders, extent, max_retries))


def check_rules(events: DataFrame, extent: AuditExtent) -> DataFrame:
    """Check the rules on all of these messages. Return the same columns as `check_events`."""
    rows = _in_context(events, extent)
    found = [F.when(F.coalesce(is_broken, F.lit(False)), _named(rule, detail)) for rule, is_broken, detail in _rules()]
    broken = rows.select(
        "tenant", "queue", "id", F.col("at").alias("first_seen"), F.array_compact(F.array(*found)).alias("broken")
    ).where(F.size("broken") > 0)
    return broken.select(F.explode("broken").alias("each"), "tenant", "queue", "id", "first_seen").select(
        "each.rule", "tenant", "queue", "id", "each.detail", "first_seen"
    )


def _select(events: DataFrame, found: DataFrame, cleanup: ExitStack) -> DataFrame | None:
    """Return the events of the messages that were found, or None if there are none."""
    found = found.cache()
    cleanup.callback(found.unpersist)
    number = found.count()
    if not number:
        return None
    return events.join(F.broadcast(found) if number <= _FEW else found, hash_of_id() == found["suspect"], "left_semi")


def _in_context(events: DataFrame, extent: AuditExtent) -> DataFrame:
    ordered = _order(extent)
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    kept = ("event", "version", "attempt", "tenant", "queue", "enqueued_at", "correlation_id", "shard", "seq")
    is_moved = F.col("event") == Event.MOVED.value
    after = F.create_map(*(F.lit(text) for pair in AFTER_NAMES.items() for text in pair))
    return (
        _with_shards(events, extent)
        .withColumn("was", F.lag(F.struct(*kept)).over(ordered))
        .withColumn("turned", F.last(F.when(~is_moved, F.col("event")), ignorenulls=True).over(before))
        .withColumn("leased_at", F.last(F.when(_is(Event.CLAIMED), F.col("at")), ignorenulls=True).over(before))
        # Null if unknown, because the life began before the journal.
        .withColumn("state", F.try_element_at(after, F.col("turned")))
        .withColumn("is_first", F.col("was").isNull())
        .withColumn("is_whole", F.unix_millis("enqueued_at") > F.lit(extent.start_ms))
    )


def _with_shards(events: DataFrame, extent: AuditExtent) -> DataFrame:
    """Order messages that changed their database by time, because the numbers of two databases cannot be compared."""
    if extent.shards == 1:
        return events
    whole = Window.partitionBy("id")
    crossed = F.min("shard").over(whole) != F.max("shard").over(whole)
    return events.withColumn("order_at", F.when(crossed, F.unix_millis("at")).otherwise(F.lit(0)))


def _order(extent: AuditExtent) -> WindowSpec:
    if extent.shards == 1:
        return Window.partitionBy("id").orderBy("seq")
    # A message leaves one database before it arrives in the next one.
    arrives = _is(Event.MOVED) & F.col("reason").startswith("from ")
    return Window.partitionBy("id").orderBy("order_at", F.when(arrives, 1).otherwise(0), "shard", "seq")


def _is(*which: Event) -> Column:
    return F.col("event").isin([each.value for each in which])


def _named(rule: Rule, detail: Column) -> Column:
    return F.struct(F.lit(rule.value).alias("rule"), detail.alias("detail"))


def _rules() -> list[tuple[Rule, Column, Column]]:
    event, state, was = F.col("event"), F.col("state"), F.col("was")
    is_first, is_later = F.col("is_first"), ~F.col("is_first")
    is_held = state == State.IN_FLIGHT.value
    is_new = _is(Event.ENQUEUED)
    # Events that are not covered by another rule.
    is_known = event.isin([each.value for each in Event])
    is_open = is_later & is_known & ~state.isin(*ENDED) & ~is_new
    may_follow = F.lit(False)
    for name, events in NEXT.items():
        may_follow = may_follow | ((state == name) & event.isin(list(events)))
    is_claim = _is(Event.CLAIMED)
    is_unheld = is_open & event.isin(_VERDICTS) & ~is_held
    is_uncounted = F.coalesce(F.col("reason"), F.lit("")).isin("unsent", "ttl")
    counted = F.col("was.attempt") + F.when(is_claim, 1).otherwise(0)
    ill_counted = (F.col("attempt") != counted) & ~(is_uncounted & (F.col("attempt") == counted - 1))
    is_moved = _is(Event.MOVED)
    is_elsewhere = (F.col("tenant") != F.col("was.tenant")) | (F.col("queue") != F.col("was.queue"))
    is_arrival = is_moved & (F.col("was.event") == Event.MOVED.value)
    return [
        (
            Rule.NAME,
            (is_first | is_moved) & ~(F.col("tenant").rlike(NAME) & F.col("queue").rlike(NAME)),
            _text("tenant ", F.col("tenant"), ", queue ", F.col("queue")),
        ),
        (Rule.ID, is_first & ~F.col("id").rlike(ID), _text("id ", F.col("id"), " is not one that enqueue creates")),
        (
            Rule.UNKNOWN_EVENT,
            ~is_known,
            _text("event ", event, " is unknown"),
        ),
        (
            Rule.DOUBLED_EVENT,
            is_later & (F.col("shard") == F.col("was.shard")) & (F.col("seq") == F.col("was.seq")),
            _text("event ", F.col("shard"), ":", F.col("seq"), " (", event, ") occurs twice"),
        ),
        (
            Rule.ENQUEUED_ONCE,
            (is_later & is_new) | (is_first & ~is_new & F.col("is_whole")),
            F.when(is_new, _text("enqueued again, after ", F.col("was.event"))).otherwise(
                _text("the first event is ", event)
            ),
        ),
        (Rule.AFTER_END, is_later & state.isin(*ENDED) & ~_is_removal_of_kept(), _text(event, " after it was ", state)),
        (Rule.DOUBLE_LEASE, is_open & is_claim & is_held, _text("claimed again while it was leased")),
        (Rule.STALE_ACCEPTED, is_unheld, _text(event, " while it was ", state)),
        (
            Rule.TRANSITION,
            is_open & state.isNotNull() & ~may_follow & ~is_unheld & ~(is_claim & is_held),
            _text(event, " while it was ", state),
        ),
        (
            Rule.VERSION,
            is_later
            & F.when(is_claim, F.col("version") <= F.col("was.version")).otherwise(
                F.col("version") != F.col("was.version")
            ),
            _text(event, " of version ", F.col("version"), " after version ", F.col("was.version")),
        ),
        (
            Rule.ATTEMPT,
            is_later & ~is_new & ill_counted,
            _text(event, " counts attempt ", F.col("attempt"), " after ", F.col("was.attempt")),
        ),
        (
            Rule.CLAIMED_AT,
            is_later & is_held & event.isin(_VERDICTS) & (F.col("claimed_at") != F.col("leased_at")),
            _text(event, " has the claim time ", F.col("claimed_at"), ", but the lease has ", F.col("leased_at")),
        ),
        (
            Rule.REASON,
            _is(Event.FAILED) & (F.coalesce(F.col("reason"), F.lit("")) == ""),
            _text("failed without a reason"),
        ),
        (
            Rule.CROSSED,
            is_later & is_elsewhere & ~is_arrival,
            _text("was in ", F.col("was.tenant"), "/", F.col("was.queue"), ", and was not moved"),
        ),
        (
            Rule.CHANGED,
            is_later
            & was.isNotNull()
            & (
                (F.col("enqueued_at") != F.col("was.enqueued_at"))
                | (F.col("correlation_id") != F.col("was.correlation_id"))
            ),
            _text(
                "was enqueued at ",
                F.col("was.enqueued_at"),
                " as ",
                F.col("was.correlation_id"),
                "; now it has ",
                F.col("enqueued_at"),
                " as ",
                F.col("correlation_id"),
            ),
        ),
    ]


def _is_removal_of_kept() -> Column:
    """Return the condition for the removal of a succeeded message that `keep_succeeded_ms` had kept."""
    return (F.col("state") == State.SUCCEEDED.value) & _is(Event.REMOVED)


def _text(*parts: Column | str) -> Column:
    return F.concat_ws("", *(F.lit(part) if isinstance(part, str) else part.cast("string") for part in parts))


def _over_budget(events: DataFrame, extent: AuditExtent, max_retries: int) -> DataFrame:
    """Check the number of retries. A redrive resets it, so failures and expiries are counted between redrives."""
    redrives = F.count(F.when(_is(Event.REDRIVEN), 1)).over(_order(extent))
    spent = F.count(F.when(_is(Event.RETRIED, Event.EXPIRED), 1))
    return (
        _with_shards(events, extent)
        .withColumn("life", redrives)
        .groupBy("id", "life")
        .agg(
            spent.alias("spent"),
            F.max_by("tenant", "seq").alias("tenant"),
            F.max_by("queue", "seq").alias("queue"),
            F.max("at").alias("first_seen"),
        )
        .where(F.col("spent") > max_retries)
        .select(
            F.lit(Rule.BUDGET.value).alias("rule"),
            "tenant",
            "queue",
            "id",
            _text("retried or expired ", F.col("spent"), f" times, with {max_retries} retries").alias("detail"),
            "first_seen",
        )
    )


def last_events(events: DataFrame, extent: AuditExtent) -> DataFrame:
    """Return (id, tenant, queue, state, version, at) for each message, by its last event."""
    order = F.struct("order_at", "shard", "seq") if extent.shards > 1 else F.struct("seq")
    moved = F.when(_is(Event.MOVED), F.lit(None)).otherwise(order)
    after = F.create_map(*(F.lit(text) for pair in AFTER_NAMES.items() for text in pair))
    return (
        _with_shards(events, extent)
        .groupBy("id")
        .agg(
            F.max_by(F.struct("tenant", "queue", "version", "at"), order).alias("last"),
            F.max_by("event", moved).alias("turned"),
        )
        .select(
            "id",
            "last.*",
            F.try_element_at(after, F.col("turned")).alias("state"),
        )
    )


def check_against_store(last: DataFrame, snapshot: DataFrame, extent: AuditExtent) -> DataFrame:
    """Compare the last event of each message with the store's messages (id, tenant, queue, state, enqueued_at).

    Both must be of the same moment: from a store at rest, or from a checkpoint. Messages that were enqueued before the
    journal's first event may be missing in the journal.
    """
    held = snapshot.select(
        "id",
        F.col("tenant").alias("in_tenant"),
        F.col("queue").alias("in_queue"),
        F.col("state").alias("is_state"),
        (F.unix_millis("enqueued_at") > F.lit(extent.start_ms)).alias("is_whole"),
    )
    both = last.join(held, "id", "full_outer")
    is_over = F.col("state").isin(*ENDED)
    rule = (
        F.when(F.col("is_state").isNull() & ~is_over, F.lit(Rule.LOST.value))
        .when(F.col("tenant").isNull() & F.col("is_whole"), F.lit(Rule.UNRECORDED.value))
        .when((F.col("state") == GONE) & F.col("is_state").isNotNull(), F.lit(Rule.OTHER_STATE.value))
        .when(F.col("state") != F.col("is_state"), F.lit(Rule.OTHER_STATE.value))
        .when(
            (F.col("tenant") != F.col("in_tenant")) | (F.col("queue") != F.col("in_queue")),
            F.lit(Rule.CROSSED.value),
        )
    )
    return (
        both.withColumn("rule", rule)
        .where(F.col("rule").isNotNull())
        .select(
            "rule",
            F.coalesce("tenant", "in_tenant").alias("tenant"),
            F.coalesce("queue", "in_queue").alias("queue"),
            "id",
            _text(
                "the journal says ",
                F.coalesce("state", F.lit("nothing")),
                ", the store ",
                F.coalesce("is_state", F.lit("nothing")),
            ).alias("detail"),
            F.col("at").alias("first_seen"),
        )
    )
