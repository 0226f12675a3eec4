"""A fast look over all events for the few messages that the rules have to judge.

Each event is reduced to a few numbers and held against the one before it of the same message. Whatever is not plainly
in order makes its message a suspect: what is broken, and also what is rare and takes more than one look (moves, jumps
of a count, lives that began before the journal, messages that changed their database, two ids with one hash). So the
screen may name a message too many, and none too few; the rules then read the suspects' events alone.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from holdfast.model.events import Event
from holdfast.pipeline.jobs.rules import AFTER_NAMES, NEXT, OF_A_LEASE

# As model.names has it.
NAME = "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$"
# As model.ids spells it: version 7, and 52 bits that are always 0.
ID = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-000000000000$"

# A bit for each kind of event.
_BITS = {event.value: 1 << number for number, event in enumerate(Event)}
_LEASED = sum(_BITS[each.value] for each in OF_A_LEASE)


def suspects(events: DataFrame) -> DataFrame:
    """The hashes (`suspect`) of the ids of messages that are not plainly in order."""
    order = Window.partitionBy("suspect").orderBy("shard", "seq")
    rows = _reduced(events)
    before = {name: F.lag(name).over(order) for name in ("shard", "seq", "kind", "version", "attempt", "lease", "who")}
    beside = rows.select("*", *(column.alias(f"was_{name}") for name, column in before.items()))
    return beside.where(~F.coalesce(_is_plain(), F.lit(False))).select("suspect").distinct()


def hash_of_id() -> Column:
    return F.xxhash64("id")


def _reduced(events: DataFrame) -> DataFrame:
    kind = F.lit(0)
    for name, bit in _BITS.items():
        kind = F.when(F.col("event") == name, F.lit(bit)).otherwise(kind)
    is_new = F.col("event") == Event.ENQUEUED.value
    # One match instead of three: no name has a slash in it.
    is_well_named = F.concat_ws("/", "tenant", "queue", "id").rlike(f"^{NAME[1:-1]}/{NAME[1:-1]}/{ID[1:-1]}$")
    has_reason = (F.col("event") != Event.FAILED.value) | (F.length("reason") > 0)
    return events.select(
        hash_of_id().alias("suspect"),
        "shard",
        "seq",
        kind.alias("kind"),
        "version",
        "attempt",
        # Of the claim itself, and of what names it: they must be one.
        F.when(F.col("event") == Event.CLAIMED.value, F.col("at")).otherwise(F.col("claimed_at")).alias("lease"),
        F.xxhash64("id", "tenant", "queue", "enqueued_at", "correlation_id").alias("who"),
        # Once for each message: the names stay the same, as `who` shows.
        (F.when(is_new, is_well_named).otherwise(F.lit(True)) & has_reason).alias("is_well_formed"),
    )


def _is_plain() -> Column:
    kind, was = F.col("kind"), F.col("was_kind")
    is_claim = kind == _BITS[Event.CLAIMED]
    follows = F.lit(0)
    for event, state in AFTER_NAMES.items():
        bits = sum(_BITS[each] for each in NEXT.get(state, ()) if each != Event.MOVED.value)
        follows = F.when(was == _BITS[event], F.lit(bits)).otherwise(follows)
    is_leased = kind.bitwiseAND(F.lit(_LEASED)) != 0
    is_first = was.isNull()
    return F.col("is_well_formed") & F.when(is_first, kind == _BITS[Event.ENQUEUED]).otherwise(
        (F.col("who") == F.col("was_who"))
        & (F.col("shard") == F.col("was_shard"))
        & (F.col("seq") > F.col("was_seq"))
        & (kind.bitwiseAND(follows) != 0)
        & F.when(
            is_claim, (F.col("version") > F.col("was_version")) & (F.col("attempt") == F.col("was_attempt") + 1)
        ).otherwise((F.col("version") == F.col("was_version")) & (F.col("attempt") == F.col("was_attempt")))
        & (~is_leased | (F.col("lease") == F.col("was_lease")))
    )
