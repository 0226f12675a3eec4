"""Two fast looks over all events for the few messages that the rules have to judge.

The first sees nearly all messages through: those with a plain life of at most two attempts. It is one hash aggregate
over numbers, with nothing sorted. In a plain life every event says by itself which place it has there: an enqueue is
number 0, the claim of attempt n number 2n - 1, its verdict number 2n. So a life is in order if its events fill the
places from 0 on, each once, in the order of their sequence, and what must stay the same does.

The second holds each event of the others against the one before it of the same message. Whatever is not plainly in
order makes its message a suspect: what is broken, and also what is rare and takes more than one look (moves, jumps of a
count, lives that began before the journal, messages that changed their database, two ids with one hash). So a look may
name a message too many, and none too few; the rules then read the suspects' events alone.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from holdfast.model.events import Event
from holdfast.pipeline.audit.rules import AFTER_NAMES, NEXT, OF_A_LEASE

# As model.names has it.
NAME = "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$"
# As model.ids spells it: version 7, and 52 bits that are always 0.
ID = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-000000000000$"

# A bit for each kind of event.
_BITS = {event.value: 1 << number for number, event in enumerate(Event)}
_LEASED = sum(_BITS[each.value] for each in OF_A_LEASE)

# Of the first look: places in a life, and the bit where those of events that end one begin. An event that has no place
# takes one that no life reaches.
_ATTEMPTS = 2
_PLACES = range(2 * _ATTEMPTS + 1)
_NOWHERE = 12
_ENDED = 16
_GOES_ON = (Event.RETRIED.value, Event.RELEASED.value, Event.EXPIRED.value)
_ENDS = (Event.SUCCEEDED.value, Event.FAILED.value)


def not_plain(events: DataFrame) -> DataFrame:
    """The hashes (`suspect`) of the ids of messages that have more than a plain life of two attempts, or less."""
    lives = (
        _in_places(events)
        .groupBy("suspect")
        .agg(
            F.count(F.lit(1)).alias("events"),
            F.bit_or("bits").alias("bits"),
            F.bit_xor("lease").alias("leases"),
            F.min("who").alias("who"),
            F.max("who").alias("last_who"),
            *(F.max(F.when(F.col("place") == place, F.col("seq"))).alias(f"seq_{place}") for place in _PLACES),
        )
    )
    return lives.where(~F.coalesce(_is_in_order(), F.lit(False))).select("suspect")


def _in_places(events: DataFrame) -> DataFrame:
    """Of each event its place in a plain life, with what must agree between events."""
    event, attempt = F.col("event"), F.col("attempt")
    is_new, is_claim = event == Event.ENQUEUED.value, event == Event.CLAIMED.value
    is_counted = (F.col("version") == attempt) & attempt.between(1, _ATTEMPTS)
    goes_on, ends = event.isin(*_GOES_ON), event.isin(*_ENDS)
    place = (
        F.when(is_new & (attempt == 0) & (F.col("version") == 0) & _is_well_named(), 0)
        .when(is_claim & is_counted, 2 * attempt - 1)
        .when(goes_on & is_counted, 2 * attempt)
        .when(ends & is_counted & _has_reason(), 2 * attempt)
        .otherwise(_NOWHERE)
    )
    return events.select(
        hash_of_id().alias("suspect"), "seq", place.alias("place"), "at", "claimed_at", "event", "attempt", _who()
    ).select(
        *("suspect", "seq", "place", "who"),
        _bit(F.when(ends, F.col("place") + _ENDED).otherwise(F.col("place"))).alias("bits"),
        # The same in a claim and in its verdict: together they are 0.
        F.when(is_new, F.lit(0).cast("bigint"))
        .otherwise(F.xxhash64(attempt, F.when(is_claim, F.col("at")).otherwise(F.col("claimed_at"))))
        .alias("lease"),
    )


def _is_in_order() -> Column:
    events, bits = F.col("events"), F.col("bits")
    ended = F.shiftrightunsigned(bits, _ENDED)
    filled = bits.bitwiseAND(F.lit((1 << _ENDED) - 1)).bitwiseOR(ended)
    rises = F.lit(True)
    for place in _PLACES[1:]:
        rises = rises & ((events <= place) | (F.col(f"seq_{place}") > F.col(f"seq_{place - 1}")))
    last = _bit((events - 1).cast("int"))
    return (
        (events <= len(_PLACES))
        & (filled == 2 * last - 1)
        & ((ended == 0) | (ended == last))
        & (F.col("who") == F.col("last_who"))
        # Of one that is held the claim stands alone, and nothing tells whether those before it agreed.
        & ((F.col("leases") == 0) | (events == 2))
        & rises
    )


def _bit(number: Column) -> Column:
    # The function of this name in PySpark takes a number alone.
    return F.call_function("shiftleft", F.lit(1), number)


def suspects(events: DataFrame) -> DataFrame:
    """The hashes (`suspect`) of the ids of messages that are not plainly in order."""
    order = Window.partitionBy("suspect").orderBy("shard", "seq")
    rows = _reduced(events)
    before = {name: F.lag(name).over(order) for name in ("shard", "seq", "kind", "version", "attempt", "lease", "who")}
    beside = rows.select("*", *(column.alias(f"was_{name}") for name, column in before.items()))
    return beside.where(~F.coalesce(_is_plain(), F.lit(False))).select("suspect").distinct()


def hash_of_id() -> Column:
    return F.xxhash64("id")


def _who() -> Column:
    """What stays the same for a message's life, on one database."""
    return F.xxhash64("id", "tenant", "queue", "enqueued_at", "correlation_id", "shard").alias("who")


def _is_well_named() -> Column:
    # One match instead of three: no name has a slash in it.
    return F.concat_ws("/", "tenant", "queue", "id").rlike(f"^{NAME[1:-1]}/{NAME[1:-1]}/{ID[1:-1]}$")


def _has_reason() -> Column:
    return (F.col("event") != Event.FAILED.value) | (F.length("reason") > 0)


def _reduced(events: DataFrame) -> DataFrame:
    kind = F.lit(0)
    for name, bit in _BITS.items():
        kind = F.when(F.col("event") == name, F.lit(bit)).otherwise(kind)
    is_new = F.col("event") == Event.ENQUEUED.value
    return events.select(
        hash_of_id().alias("suspect"),
        "shard",
        "seq",
        kind.alias("kind"),
        "version",
        "attempt",
        # Of the claim itself, and of what names it: they must be one.
        F.when(F.col("event") == Event.CLAIMED.value, F.col("at")).otherwise(F.col("claimed_at")).alias("lease"),
        _who(),
        # Once for each message: the names stay the same, as `who` shows.
        (F.when(is_new, _is_well_named()).otherwise(F.lit(True)) & _has_reason()).alias("is_well_formed"),
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
