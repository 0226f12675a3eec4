"""The hot statements: each does in one statement what the shared logic does in several.

`SHORTCUTS` names the function that each statement equals. A call that no statement can serve (groups, ledgers,
idempotency keys, quotas, payloads in pieces, verdicts other than acks) runs the function. With `uses_shortcuts=False`
the store always runs the functions, and `tests/properties/test_postgres_shortcuts.py` compares the two.
"""

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.model.events import Event
from holdfast.model.message import Draft
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.claims import claim
from holdfast.stores.logic.enqueue import enqueue
from holdfast.stores.logic.verdicts import settle
from holdfast.stores.postgres.queues.queue_info import QueueInfo
from holdfast.stores.postgres.schema.rows import encode_drafts

SHORTCUTS: dict[str, Callable[..., Any]] = {
    # Adds messages if neither the queue nor its tenant has changed since they were checked. In a step, the same
    # statement adds the messages: there it equals `lifecycle.first_life` and `make_envelope`.
    "enqueue": enqueue,
    # Claims due messages of a queue without groups in which nothing waits to be ended by time.
    "claim": claim,
    # The same, if certain messages are still the next ones.
    "claim_reserved": claim,
    # Acks that delete their message: the queue keeps no succeeded messages, and the message is in no group and has no
    # pieces.
    "ack": settle,
}


def enqueue_arguments(
    queue: QueueInfo, drafts: list[Draft], ids: Sequence[int], given_now: int | None, reason: str | None
) -> list[Any]:
    """Return the arguments of the statement `enqueue`."""
    columns = encode_drafts(drafts, ids, queue.default_ttl_ms)
    return [queue.key, given_now, queue.revision, queue.tenant_revision, reason, *columns]


def note_enqueued(queue: QueueInfo, drafts: list[Draft], row: Any, notices: Notices) -> None:
    """Add notices for new messages; `row` is the result of the statement `enqueue`."""
    notices.tally(queue.ref, Event.ENQUEUED, len(drafts))
    if not row["is_paused"]:
        notices.ready(queue.ref, row["visible_at"])
    default_ms = queue.default_ttl_ms
    ttls = [draft.ttl_ms for draft in drafts if draft.ttl_ms is not None]
    if default_ms is not None and len(ttls) < len(drafts):
        ttls.append(default_ms)
    if ttls:
        notices.deadline(row["now"] + min(ttls))
