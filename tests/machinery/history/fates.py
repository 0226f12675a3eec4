"""The final state of every message, checked when the history has ended."""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from tests.machinery.history.lines import Enqueue
from tests.machinery.history.rules import Findings, Rule
from tests.machinery.history.tracking import Book, Tracked

# Events after which a message is gone.
_ENDS = frozenset({"succeeded", "removed"})


def check_fates(book: Book, ended_at: int, findings: Findings) -> None:
    """R1: acked, removed by an operator, outlived its TTL, or still there. Anything else is lost."""
    removed: Counter[str] = Counter()
    ended_at = ended_at and max(ended_at, book.clockwork.latest)
    for message in book.messages.values():
        is_there = message.is_dead or message.is_stranded
        if message.ended is not None:
            if is_there:
                how = "acked" if message.acked is not None else "removed"
                findings.broke(Rule.RESURRECTED, f"{message.id} was {how} and is still in {message.queue}")
        elif not (
            is_there or message.unanswered_acks or message.unanswered_removals or _is_over(book, message, ended_at)
        ):
            removals = book.places[message.queue].removals
            if book.may_be_removed(message):
                if message.id in book.moves:
                    continue  # in which of its queues cannot be told
                removed[message.queue] += 1
                if removals.unanswered or removed[message.queue] <= removals.removed:
                    continue
            how = "acknowledged" if message.answered is not None else "delivered"
            findings.broke(Rule.LOST, f"{message.id} of {message.queue} was {how} and is gone")


def _is_over(book: Book, message: Tracked, ended_at: int) -> bool:
    """Its TTL may have run out, where the policy drops such messages. A time of 0 is one that was not written down."""
    ttl_ms = message.item.ttl_ms
    moves = book.moves.get(message.id)
    is_dropped = message.item.is_dropped or (moves is not None and any(stay.is_dropped for stay in moves.stays))
    if ttl_ms is None or not is_dropped:
        return False
    return not ended_at or ended_at >= message.sent.at + ttl_ms


def check_torn(book: Book, unanswered: Iterable[Any], findings: Findings) -> None:
    """A batch is enqueued all or nothing, even if the call was not answered."""
    for call in unanswered:
        if isinstance(call, Enqueue) and call.items and all(item.key is None for item in call.items):
            there = [item.payload for item in call.items if item.payload in book.id_of]
            may_be_gone = book.places[call.queue].removals.may_have_ended(book.sent[call.items[0].payload])
            is_dropped = any(item.is_dropped and item.ttl_ms is not None for item in call.items)
            if there and len(there) < len(call.items) and not (may_be_gone or is_dropped):
                findings.broke(Rule.TORN, f"call {call.n} was cut off and {len(there)} of {len(call.items)} are there")


def check_journal(book: Book, events: Mapping[int, Mapping[str, int]], findings: Findings) -> None:
    """The journal has every message once, every ack once, and every delivery that no power cut undid.

    It also has facts without an answer: a message with an unanswered ack is lost if no event ended it.
    """
    nothing: Mapping[str, int] = {}
    for message in book.messages.values():
        told = events.get(message.id, nothing)
        enqueued, succeeded, claimed = (told.get(name, 0) for name in ("enqueued", "succeeded", "claimed"))
        if enqueued != 1:
            findings.broke(Rule.JOURNAL, f"{message.id} has {enqueued} enqueued events")
        acked = message.acks
        if not acked <= succeeded <= max(acked, min(1, message.unanswered_acks)):
            findings.broke(Rule.JOURNAL, f"{message.id} has {succeeded} succeeded events and {acked} acks")
        is_there = message.is_dead or message.is_stranded
        if message.unanswered_acks and message.ended is None and not is_there and not _ENDS & told.keys():
            findings.broke(Rule.LOST, f"{message.id} of {message.queue} is gone, and no event tells how")
        if claimed < message.delivered - message.undone:
            findings.broke(Rule.JOURNAL, f"{message.id}: {message.delivered} deliveries, {claimed} told")
        # Each move is told by the queue that the message left, and by the one that it came to.
        moved, moves = told.get("moved", 0), book.moves.get(message.id)
        least = 0 if moves is None else 2 * moves.answered
        most = least if moves is None or not moves.unanswered else inf
        if moved % 2 or not least <= moved <= most:
            findings.broke(Rule.JOURNAL, f"{message.id} has {moved} moved events and {least // 2} moves")
