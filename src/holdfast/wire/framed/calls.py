"""Encode and decode the bodies of the framed protocol's CALL frames.

    [operation, tenant, queue, context, arguments…]

Calls on the path of every message have array arguments, which are decoded directly into subclasses of the model's types
with `array_like`. The array has the fields in the model's order, so a new field of the model must be added at the end.
Every other operation has one argument, a map derived from its row in the table of operations.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import astuple

from holdfast.model.errors import InvalidArgument
from holdfast.model.ids import MAX_ID
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Verdict
from holdfast.wire.arguments import ArgumentsBinding
from holdfast.wire.binding import FieldShape
from holdfast.wire.operation import Operation
from holdfast.wire.operations import OPERATIONS

# --- The model's types as arrays -------------------------------------------------------------------------------------


class FramedReceipt(Receipt):
    """A receipt whose parts are checked for their range when it is decoded."""

    __slots__ = ()

    id: Annotated[int, Meta(ge=0, le=MAX_ID)]
    token: Annotated[bytes, Meta(min_length=16, max_length=16)]
    version: Annotated[int, Meta(ge=0)]


class FramedDraft(Draft, frozen=True, kw_only=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A new message, as an array."""

    # Only stores set this field.
    pieces: None = None


class FramedClaimRequest(
    ClaimRequest, frozen=True, kw_only=True, gc=False, array_like=True, forbid_unknown_fields=True
):
    """A claim request, as an array."""


class FramedVerdict(Verdict, frozen=True, kw_only=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A verdict, as an array."""

    receipt: FramedReceipt


# --- Calls -----------------------------------------------------------------------------------------------------------


class Context(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The correlation id and the trace that a call belongs to."""

    correlation_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None


class CallFrame(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The fields of every call. The default tenant is the caller's own, and the default queue is `default`."""

    tenant: str | None
    queue: str | None
    context: Context | None


class EnqueueCall(CallFrame, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, tag="enqueue"):
    """Enqueue messages, all or none."""

    drafts: list[FramedDraft]


class ClaimCall(CallFrame, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, tag="claim"):
    """Claim messages."""

    ask: FramedClaimRequest
    # None: wait without a limit.
    wait_ms: int | None = 0


class ExchangeCall(CallFrame, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, tag="exchange"):
    """Carry out verdicts and claim messages."""

    ask: FramedClaimRequest
    verdicts: list[FramedVerdict]
    wait_ms: int | None = 0


class SettleCall(CallFrame, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, tag="settle"):
    """Carry out verdicts."""

    verdicts: list[FramedVerdict]


class SubscribeCall(CallFrame, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, tag="subscribe"):
    """Claim messages as they become ready, until the call is cancelled."""

    ask: FramedClaimRequest
    # The maximum number of messages that the subscriber holds and has not settled.
    prefetch: int
    wait_ms: int | None = None
    release_on_leave: bool = False


class UploadCall(CallFrame, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, tag="upload"):
    """Enqueue a message whose payload is sent in DATA frames."""

    # Without a payload: that follows in DATA frames.
    draft: FramedDraft


class ReadPartCall(CallFrame, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, tag="read_part"):
    """Read part of the payload of a message that the caller holds."""

    receipt: FramedReceipt
    offset: int
    limit: int


HOT_CALLS: Final = (EnqueueCall, ClaimCall, ExchangeCall, SettleCall, SubscribeCall, UploadCall, ReadPartCall)

# --- Operations by name ----------------------------------------------------------------------------------------------


def _document_out(document: Any) -> bytes | UnsetType:
    return UNSET if document is UNSET else bytes(document)


def _document_of(given: bytes | UnsetType, ref: QueueRef) -> Raw | UnsetType:
    """Return a state document. Refuse one that is not JSON, because other wires embed it in their own documents."""
    if given is UNSET:
        return UNSET
    try:
        given.decode()
        msgspec.json.decode(given)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidArgument("document is not the text of a JSON document", field="document") from None
    return Raw(given)


def _changes_out(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as they are written. Clients hold them as the JSON that they checked, doors as what they read.

    Raise `InvalidArgument` for a number that MessagePack cannot carry: no setting of a queue or tenant is so large.
    """
    written = {}
    for name, value in changes.items():
        written[name] = msgspec.json.decode(value) if isinstance(value, Raw) else value
        try:
            _encode(written[name])
        except OverflowError:
            raise InvalidArgument(f"{name}: {value!r} is out of range", field=name) from None
    return written


# The model holds these values as raw JSON, which MessagePack cannot embed.
_SHAPES: Mapping[Any, FieldShape] = {
    Raw | UnsetType: FieldShape(bytes | UnsetType, _document_out, _document_of),
    dict[str, Any]: FieldShape(dict[str, Any], _changes_out, lambda given, ref: given),
}


class NamedBinding:
    """The CALL and the result of one operation that is carried by name."""

    def __init__(self, operation: Operation[Any, Any]) -> None:
        self.operation = operation
        self._binding: ArgumentsBinding[Any, Any] = ArgumentsBinding(operation, _SHAPES)
        kind = self._binding.arguments_type
        has_defaults = all(not field.required for field in msgspec.structs.fields(kind))
        arguments = (kind, msgspec.field(default_factory=kind)) if has_defaults else (kind,)
        self.call_type: Any = msgspec.defstruct(
            f"{kind.__name__}Call",
            [("arguments", *arguments)],
            bases=(CallFrame,),
            tag=operation.name,
            frozen=True,
            array_like=True,
            forbid_unknown_fields=True,
        )
        self._answer = msgspec.msgpack.Decoder(self._binding.answer_type)

    def arguments(self, request: Any) -> Any:
        """Return the argument of a call."""
        return self._binding.arguments(request)

    def request(self, call: Any, ref: QueueRef) -> Any:
        """Return the request of a decoded call. Raise `InvalidArgument` for a wrong value."""
        return self._binding.request(call.arguments, ref)

    def write_answer(self, answer: Any) -> bytes:
        """Encode the result of the operation."""
        return _encode(self._binding.document(answer))

    def read_answer(self, body: bytes) -> Any:
        """Decode the result of the operation. Raise `msgspec.DecodeError` for any other body."""
        return self._binding.answer(self._answer.decode(body))


_encode = msgspec.msgpack.Encoder().encode

# The operations carried by name: those that have an HTTP route and no hand-written code.
NAMED: Mapping[str, NamedBinding] = {
    name: NamedBinding(operation) for name, operation in OPERATIONS.items() if operation.routes and not operation.is_hot
}

# --- The client's side -----------------------------------------------------------------------------------------------


def write_enqueue(ref: QueueRef, drafts: Sequence[Draft], context: Context | None = None) -> bytes:
    """Encode an enqueue."""
    return _encode(("enqueue", *ref, context, [_draft_out(each) for each in drafts]))


def write_claim(ref: QueueRef, ask: ClaimRequest, wait_ms: int | None, context: Context | None = None) -> bytes:
    """Encode a claim."""
    return _encode(("claim", *ref, context, astuple(ask), wait_ms))


def write_exchange(
    ref: QueueRef, ask: ClaimRequest, verdicts: Sequence[Verdict], wait_ms: int | None, context: Context | None = None
) -> bytes:
    """Encode an exchange."""
    return _encode(("exchange", *ref, context, astuple(ask), [astuple(each) for each in verdicts], wait_ms))


def write_settle(ref: QueueRef, verdicts: Sequence[Verdict], context: Context | None = None) -> bytes:
    """Encode verdicts."""
    return _encode(("settle", *ref, context, [astuple(each) for each in verdicts]))


def write_subscribe(
    ref: QueueRef,
    ask: ClaimRequest,
    prefetch: int,
    wait_ms: int | None,
    *,
    release_on_leave: bool = False,
    context: Context | None = None,
) -> bytes:
    """Encode a subscription."""
    return _encode(("subscribe", *ref, context, astuple(ask), prefetch, wait_ms, release_on_leave))


def write_upload(ref: QueueRef, draft: Draft, context: Context | None = None) -> bytes:
    """Encode the start of an upload."""
    return _encode(("upload", *ref, context, _draft_out(draft)))


def write_read_part(ref: QueueRef, receipt: Receipt, offset: int, limit: int, context: Context | None = None) -> bytes:
    """Encode the request for a part of a payload."""
    return _encode(("read_part", *ref, context, receipt, offset, limit))


def write_named(operation: Operation[Any, Any], ref: QueueRef, request: Any, context: Context | None = None) -> bytes:
    """Encode the call of an operation by name. Raise `KeyError` if this protocol does not carry it by name."""
    return _encode((operation.name, *ref, context, NAMED[operation.name].arguments(request)))


def _draft_out(draft: Draft) -> tuple[Any, ...]:
    """Return a draft without its last field, which only stores set."""
    return astuple(draft)[:-1]


# --- The door's side -------------------------------------------------------------------------------------------------

_calls: msgspec.msgpack.Decoder[CallFrame] = msgspec.msgpack.Decoder(
    reduce(or_, (*HOT_CALLS, *(each.call_type for each in NAMED.values())))
)


def read_call(body: bytes) -> CallFrame:
    """Decode the body of a CALL frame.

    Raise `msgspec.ValidationError`, `UnicodeDecodeError` or `RecursionError` for a value of the wrong shape, and
    `msgspec.DecodeError` for a body that is not MessagePack.
    """
    return _calls.decode(body)


def operation_of(call: CallFrame | type[CallFrame]) -> str:
    """Return the name of a call's operation."""
    return str(call.__struct_config__.tag)
