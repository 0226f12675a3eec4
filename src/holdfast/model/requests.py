"""Requests to a queue and their checks: claims, verdicts, filters and the bulk verbs of operators."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.model.errors import InvalidArgument
from holdfast.model.ids import parse_id
from holdfast.model.message import MAX_BATCH, Envelope, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.parsing.checks import check_encodable, check_integer, check_text, plain
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.rules.lifecycle import Life

# Bulk verbs work in atomic steps of this many messages (SPEC 3.8).
STEP = 1_000

# The state that listings accept for messages that are ready, but not yet due.
DELAYED = "delayed"


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One caller's claim."""

    limit: int = 1
    lease_ms: int | None = None
    owner: str | None = None
    with_state: bool = False
    ledger: tuple[str, int] | None = None
    # True: payloads in pieces are not loaded, because the caller reads them in parts.
    streams: bool = False


class Settle(StrEnum):
    """The kinds of verdicts."""

    # `str`'s is faster than `Enum`'s, as in `State`: the members are dictionary keys on the hot path.
    __hash__ = str.__hash__

    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    EXTEND = "extend"
    REMOVE = "remove"
    # Undoes a claim whose caller left before the delivery was sent to it.
    UNSEND = "unsend"


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The decision of a lease's holder about its message."""

    settle: Settle
    receipt: Receipt
    error: str | None = None
    delay_ms: int | None = None
    defer: bool = False
    final: bool = False
    # For a final nack: the caller's own retries are used up, so the dead letter's reason is "retries".
    exhausted: bool = False
    lease_ms: int | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress that a handler reports for its message."""

    percent: float
    text: str = ""


class StateDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON state of a message. `document` is JSON text; it and `etag` are None before the first save."""

    document: bytes | None = None
    etag: str | None = None
    progress: Progress | None = None


NO_STATE = StateDocument()


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a message's state: `document`, saved only if the stored ETag is `etag`, or else `progress`."""

    document: bytes | None = None
    etag: str | None = None
    progress: Progress | None = None


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of messages. A message matches if it matches every field that is given."""

    ids: frozenset[int] | None = None
    error_contains: str | None = None
    older_than_ms: int | None = None
    headers: dict[str, str] = {}
    priority: int | None = None
    # These match only messages in flight: claimed by this owner, and claimed at least this long ago.
    owner: str | None = None
    held_for_ms: int | None = None
    # True: messages that are ready, but not yet due. False: all other messages.
    delayed: bool | None = None

    def matches(self, envelope: Envelope, life: Life, now_ms: int) -> bool:
        """Return whether a stored message matches."""
        lease = life.lease
        return (
            (self.ids is None or envelope.id in self.ids)
            and (self.error_contains is None or self.error_contains in (life.error or ""))
            and (self.older_than_ms is None or now_ms - envelope.enqueued_at >= self.older_than_ms)
            and (self.priority is None or life.priority == self.priority)
            and (self.owner is None or (lease is not None and lease.owner == self.owner))
            and (self.held_for_ms is None or (lease is not None and now_ms - lease.claimed_at >= self.held_for_ms))
            and (self.delayed is None or self.delayed == (life.state is State.READY and life.visible_at > now_ms))
            and all(envelope.headers.get(name) == value for name, value in self.headers.items())
        )


EVERYTHING = Filter()


class Purge(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A bulk verb: remove all messages in one state."""

    state: State = State.READY


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A bulk verb: remove the matching messages that are ready."""


class Remove(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A bulk verb: remove the matching messages in any state. The receipts of those in flight become stale."""


class Reprioritise(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A bulk verb: give the matching messages another priority."""

    priority: int


class Move(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A bulk verb: move the matching messages in one state to another queue."""

    to: QueueRef
    state: State = State.READY


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """A new payload for one failed message, set before it is redriven."""

    id: int
    payload: bytes
    content_type: str


class Redrive(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A bulk verb: make the matching failed messages ready again."""

    edit: Edit | None = None


Verb = Purge | Cancel | Remove | Reprioritise | Move | Redrive


def states_of(verb: Verb) -> frozenset[State]:
    """Return the states of the messages to which the verb applies."""
    match verb:
        case Purge(state=state) | Move(state=state):
            return frozenset({state})
        case Cancel() | Reprioritise():
            return frozenset({State.READY})
        case Redrive():
            return frozenset({State.FAILED})
        case Remove():
            return frozenset(State)


def make_filter(given: "Filter | Mapping[str, Any] | None") -> Filter:
    """Return the filter of a JSON document; None gives the filter that matches everything.

    Raise `InvalidArgument`, which names the field, for an unknown field or a wrong value.
    """
    if given is None:
        return EVERYTHING
    if isinstance(given, Filter):
        headers = {plain(name): plain(value) for name, value in given.headers.items()}
        return replace(given, error_contains=plain(given.error_contains), headers=headers, owner=plain(given.owner))
    if not isinstance(given, Mapping):
        raise InvalidArgument("a filter must be a document of fields", field="filter")
    known = set(Filter.__struct_fields__)
    for name in given:
        if name not in known:
            raise InvalidArgument(
                f"{str(name)[:80]!r} is not a field of a filter; the fields are {', '.join(sorted(known))}",
                field=f"filter.{str(name)[:80]}",
            )
    fields = {name: plain(value) for name, value in given.items()}
    if isinstance(wanted := fields.get("headers"), Mapping):
        fields["headers"] = {plain(name): plain(value) for name, value in wanted.items()}
    if fields.get("ids") is not None:
        fields["ids"] = frozenset(parse_ids(fields["ids"]))
    for name in ("older_than_ms", "held_for_ms"):
        if fields.get(name) is not None:
            fields[name] = check_integer(f"filter.{name}", fields[name], 0, MAX_MS)
    if fields.get("owner") is not None:
        check_text("filter.owner", fields["owner"])
    if fields.get("headers") is None:
        fields.pop("headers", None)
    try:
        return msgspec.convert(fields, Filter)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"filter: {error}", field="filter") from None


def parse_state(text: str) -> State:
    """Return the state of this name, or raise `InvalidArgument`."""
    try:
        return State(text)
    except ValueError:
        raise _invalid_state(text, list(State)) from None


def parse_listing(state: str | None, where: Filter) -> tuple[State | None, Filter]:
    """Return the state and the filter of a listing.

    `delayed` is not a state of its own: it means ready messages that are due later.
    """
    if state is None:
        return None, where
    if state != DELAYED:
        try:
            return State(state), where
        except ValueError:
            raise _invalid_state(state, [*State, DELAYED]) from None
    if where.delayed is False:
        raise InvalidArgument("state delayed and filter.delayed false exclude each other", field="filter.delayed")
    return State.READY, replace(where, delayed=True)


def _invalid_state(given: object, known: list[str]) -> InvalidArgument:
    return InvalidArgument(f"{str(given)[:80]!r} is not a state: give one of {', '.join(known)}", field="state")


def parse_ids(given: object) -> list[int]:
    """Return the ids of a list in either spelling, or raise `InvalidArgument`."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidArgument("ids must be a list of message ids", field="ids")
    return [parse_id(value) for value in given]


def check_claim_request(request: ClaimRequest) -> ClaimRequest:
    """Return the request, or raise `InvalidArgument`, which names the field."""
    check_integer("limit", request.limit, 1, MAX_BATCH)
    if request.lease_ms is not None:
        check_integer("lease", request.lease_ms, 1, MAX_MS)
    if request.owner is not None:
        check_text("owner", request.owner)
    if request.ledger is not None:
        check_ledger(*request.ledger)
    return request


def check_ledger(consumer: object, number: object) -> None:
    """Raise `InvalidArgument` unless both can name a claim of a ledger."""
    check_text("ledger consumer", consumer)
    check_integer("ledger number", number, 0, MAX_MS)


def check_verdict(verdict: Verdict) -> Verdict:
    """Return the verdict, or raise `InvalidArgument`, which names the field."""
    if verdict.settle is Settle.ACK:
        return verdict
    if verdict.delay_ms is not None:
        check_integer("delay", verdict.delay_ms, 0, MAX_MS)
    if verdict.lease_ms is not None:
        check_integer("lease", verdict.lease_ms, 1, MAX_MS)
    if verdict.error is not None:
        if not isinstance(verdict.error, str):
            raise InvalidArgument("error must be text", field="error")
        check_encodable("error", verdict.error)
    if verdict.defer and verdict.final:
        raise InvalidArgument("a nack is either deferred or final, not both", field="final")
    if verdict.exhausted and not verdict.final:
        raise InvalidArgument("only a final nack can be exhausted: give final too", field="exhausted")
    return verdict


def check_verdicts(verdicts: Sequence[Verdict], field: str = "receipts") -> None:
    """Raise `InvalidArgument` for a call with more than `MAX_BATCH` verdicts, and check each verdict."""
    if len(verdicts) > MAX_BATCH:
        raise InvalidArgument(f"a call settles at most {MAX_BATCH} messages, not {len(verdicts)}", field=field)
    for verdict in verdicts:
        check_verdict(verdict)


def check_progress(percent: object, text: object) -> Progress:
    """Return the progress, or raise `InvalidArgument`, which names the field."""
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
        raise InvalidArgument(f"progress {str(percent)[:80]!r} must be a number from 0 to 100", field="percent")
    if not isinstance(text, str) or len(text) > 1_024:
        raise InvalidArgument("a progress text has at most 1024 characters", field="text")
    check_encodable("text", text)
    return Progress(percent=percent, text=plain(text))
