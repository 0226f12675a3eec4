"""Two fast passes over all events, which find the few messages that the rules have to check.

The first pass accepts nearly all messages: those with a plain life of at most two attempts. It is one hash aggregate
over numbers, without a sort. In a plain life, the position of each event follows from the event itself: an enqueue has
position 0, the claim of attempt n has position 2n - 1, and its verdict has position 2n. A life is in order if its
events fill the positions from 0 on, each once and in the order of their sequence, and if its constant fields do not
change.

The second pass compares each event of the remaining messages with the previous event of the same message. A message
that is not plainly in order becomes a suspect. That includes violations, and also rare cases that need a closer check:
moves, jumps of a count, lives that began before the journal, messages that changed their database, two ids with one
hash. A pass may report too many messages, but never too few. The rules then read only the events of the suspects.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from holdfast.model.events import Event
from holdfast.pipeline.audit.rules import AFTER_NAMES, NEXT, OF_A_LEASE

# The same rule as in model.names.
NAME = "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$"
# The format of model.ids: UUID version 7, with 52 bits that are always 0.
ID = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-000000000000$"

# A bit for each kind of event.
_BITS = {event.value: 1 << number for number, event in enumerate(Event)}
_LEASED = sum(_BITS[each.value] for each in OF_A_LEASE)

# For the first pass: the positions in a life, and the first bit for events that end a life. An event without a position
# gets one that no life reaches.
_ATTEMPTS = 2
_POSITIONS = range(2 * _ATTEMPTS + 1)
_NO_POSITION = 12
_ENDED = 16
_GOES_ON = (Event.RETRIED.value, Event.RELEASED.value, Event.EXPIRED.value)
_ENDS = (Event.SUCCEEDED.value, Event.FAILED.value)


def find_unusual(events: DataFrame) -> DataFrame:
    """Return the hashes (`suspect`) of the ids of all messages without a plain life of at most two attempts."""
    lives = (
        _with_positions(events)
        .groupBy("suspect")
        .agg(
            F.count(F.lit(1)).alias("events"),
            F.bit_or("bits").alias("bits"),
            F.bit_xor("lease").alias("leases"),
            F.min("who").alias("who"),
            F.max("who").alias("last_who"),
            *(
                F.max(F.when(F.col("position") == position, F.col("seq"))).alias(f"seq_{position}")
                for position in _POSITIONS
            ),
        )
    )
    return lives.where(~F.coalesce(_is_in_order(), F.lit(False))).select("suspect")


def _with_positions(events: DataFrame) -> DataFrame:
    """Return for each event its position in a plain life, and the values that must agree between events."""
    event, attempt = F.col("event"), F.col("attempt")
    is_new, is_claim = event == Event.ENQUEUED.value, event == Event.CLAIMED.value
    is_counted = (F.col("version") == attempt) & attempt.between(1, _ATTEMPTS)
    goes_on, ends = event.isin(*_GOES_ON), event.isin(*_ENDS)
    position = (
        F.when(is_new & (attempt == 0) & (F.col("version") == 0) & _is_well_named(), 0)
        .when(is_claim & is_counted, 2 * attempt - 1)
        .when(goes_on & is_counted, 2 * attempt)
        .when(ends & is_counted & _has_reason(), 2 * attempt)
        .otherwise(_NO_POSITION)
    )
    return events.select(
        hash_of_id().alias("suspect"), "seq", position.alias("position"), "at", "claimed_at", "event", "attempt", _who()
    ).select(
        *("suspect", "seq", "position", "who"),
        _bit(F.when(ends, F.col("position") + _ENDED).otherwise(F.col("position"))).alias("bits"),
        # The same value in a claim and in its verdict, so that their XOR is 0.
        F.when(is_new, F.lit(0).cast("bigint"))
        .otherwise(F.xxhash64(attempt, F.when(is_claim, F.col("at")).otherwise(F.col("claimed_at"))))
        .alias("lease"),
    )


def _is_in_order() -> Column:
    events, bits = F.col("events"), F.col("bits")
    ended = F.shiftrightunsigned(bits, _ENDED)
    filled = bits.bitwiseAND(F.lit((1 << _ENDED) - 1)).bitwiseOR(ended)
    rises = F.lit(True)
    for position in _POSITIONS[1:]:
        rises = rises & ((events <= position) | (F.col(f"seq_{position}") > F.col(f"seq_{position - 1}")))
    last = _bit((events - 1).cast("int"))
    return (
        (events <= len(_POSITIONS))
        & (filled == 2 * last - 1)
        & ((ended == 0) | (ended == last))
        & (F.col("who") == F.col("last_who"))
        # With an open lease, the last claim has no verdict, and the XOR does not show whether earlier pairs agree.
        & ((F.col("leases") == 0) | (events == 2))
        & rises
    )


def _bit(number: Column) -> Column:
    # PySpark's function of this name accepts only a number.
    return F.call_function("shiftleft", F.lit(1), number)


def find_suspects(events: DataFrame) -> DataFrame:
    """Return the hashes (`suspect`) of the ids of messages that are not plainly in order."""
    order = Window.partitionBy("suspect").orderBy("shard", "seq")
    rows = _reduced(events)
    before = {name: F.lag(name).over(order) for name in ("shard", "seq", "kind", "version", "attempt", "lease", "who")}
    compared = rows.select("*", *(column.alias(f"was_{name}") for name, column in before.items()))
    return compared.where(~F.coalesce(_is_plain(), F.lit(False))).select("suspect").distinct()


def hash_of_id() -> Column:
    """Return the hash by which messages are grouped, which is cheaper than the id."""
    return F.xxhash64("id")


def _who() -> Column:
    """Return a hash of the fields that are constant for a message on one database."""
    return F.xxhash64("id", "tenant", "queue", "enqueued_at", "correlation_id", "shard").alias("who")


def _is_well_named() -> Column:
    # One match instead of three, because names cannot contain a slash.
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
        # The time of the claim, from the claim itself and from its verdict: they must be equal.
        F.when(F.col("event") == Event.CLAIMED.value, F.col("at")).otherwise(F.col("claimed_at")).alias("lease"),
        _who(),
        # Checked only at the enqueue, because `who` shows that the names do not change.
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
