"""A message: as a caller gives it, as a store keeps it, and what proves a lease on it."""

import binascii
import struct
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Self

import msgspec

from holdfast.model import ids
from holdfast.model.errors import InvalidArgument, PayloadTooLarge
from holdfast.model.parsing.checks import check_encodable, check_integer, check_text
from holdfast.model.parsing.durations import MAX_MS, Duration, Instant

JSON = "application/json"
BYTES = "application/octet-stream"

DEFAULT_PRIORITY = 100
MAX_BATCH = 10_000
MAX_HEADERS_BYTES = 64 << 10
MAX_ERROR = 4_096
MAX_RETRIES = 1_000_000
# Of a payload that is read part by part: what of it is in memory at a time.
MAX_PART = 4 << 20


class State(StrEnum):
    # The text's own: Enum's is written in Python, and these are keys on the hot path.
    __hash__ = str.__hash__

    READY = "ready"
    IN_FLIGHT = "in_flight"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Receipt(NamedTuple):
    """What proves a lease: the message, the lease's secret, and the fencing version.

    As text: base64url of id 16 | token 16 | version 8.
    """

    id: int
    token: bytes
    version: int

    def __str__(self) -> str:
        raw = ids.to_bytes(self.id) + self.token + self.version.to_bytes(8, "big")
        return binascii.b2a_base64(raw, newline=False).translate(_URL_SAFE).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: object) -> Self:
        if isinstance(text, cls):
            return text
        if isinstance(text, str) and len(text) == _RECEIPT_LENGTH:
            try:
                raw = binascii.a2b_base64(text.encode().translate(_STANDARD) + b"==", strict_mode=True)
                id16, token, version = _RECEIPT.unpack(raw)
                return cls(ids.from_bytes(id16), token, version)
            except (binascii.Error, UnicodeEncodeError, struct.error, InvalidArgument):
                pass  # the one message below serves every way of not being a receipt
        raise InvalidArgument(f"{str(text)[:80]!r} is not a receipt: give the one that the claim answered")


def is_receipt(text: str) -> bool:
    """Whether a text has the form of a receipt, and not that of an id."""
    return len(text) == _RECEIPT_LENGTH


_RECEIPT = struct.Struct(">16s16sQ")
_RECEIPT_LENGTH = 54
# `base64` would do the same by more calls and a table made anew, and there is a receipt for each delivery and verdict.
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_STANDARD = bytes.maketrans(b"-_", b"+/")


class NewMessage:
    """A payload to enqueue with its own options, for calls that enqueue several."""

    __slots__ = ("options", "payload")

    def __init__(
        self,
        payload: Any,
        *,
        priority: int | None = None,
        delay: Duration | None = None,
        deliver_at: Instant | None = None,
        ttl: Duration | None = None,
        key: str | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        max_retries: int | None = None,
        content_type: str | None = None,
    ) -> None:
        self.payload = payload
        given = {
            "priority": priority,
            "delay": delay,
            "deliver_at": deliver_at,
            "ttl": ttl,
            "key": key,
            "group": group,
            "headers": headers,
            "correlation_id": correlation_id,
            "max_retries": max_retries,
            "content_type": content_type,
        }
        self.options = {name: value for name, value in given.items() if value is not None}

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"NewMessage({self.payload!r}{options})"


class Pieces(msgspec.Struct, frozen=True, gc=False):
    """A payload that its store keeps in pieces, apart from the message: where, how many bytes, and their CRC-32.

    The store gives the place, once and for all: no other payload is ever kept there, but for one that an operator puts
    in its stead.
    """

    place: int
    size: int
    checksum: int


class Draft(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message to enqueue, checked: `check_draft` has seen it."""

    payload: bytes
    content_type: str = BYTES
    headers: dict[str, str] = {}
    priority: int = DEFAULT_PRIORITY
    delay_ms: int = 0
    deliver_at: int | None = None
    ttl_ms: int | None = None
    key: str | None = None
    group: str | None = None
    correlation_id: str | None = None
    max_retries: int | None = None
    # Given as JSON, and to be answered as JSON, whatever its content type says. None: it says.
    is_json: bool | None = None
    # The store has the payload already, as `Store.stage` took it; `payload` is then empty. It is
    # the last field, for no caller may set it: wires write the others.
    pieces: Pieces | None = None

    @property
    def payload_bytes(self) -> int:
        return len(self.payload) if self.pieces is None else self.pieces.size

    @property
    def bytes(self) -> int:
        size = len(self.payload) if self.pieces is None else self.pieces.size
        return size + headers_bytes(self.headers) if self.headers else size


class AboutMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something said of one message. The texts are made when they are read: most are not."""

    snowflake: int
    # None: minted, which is the id's own text.
    given_correlation_id: str | None = None

    @property
    def id(self) -> str:
        return ids.to_uuid(self.snowflake)

    @property
    def correlation_id(self) -> str:
        return self.given_correlation_id or ids.to_uuid(self.snowflake)


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What of a stored message never changes (but for its payload, when an operator edits it)."""

    id: int
    enqueued_at: int
    payload: bytes
    # Where the payload is, if it is not here: `payload` is then empty.
    pieces: Pieces | None = None
    content_type: str = BYTES
    headers: dict[str, str] = {}
    ttl_ms: int | None = None
    group: str | None = None
    # None: minted, which is the id's own text; so a caller that gives none costs no bytes.
    given_correlation_id: str | None = None
    max_retries: int | None = None
    is_json: bool = False

    @property
    def bytes(self) -> int:
        size = len(self.payload) if self.pieces is None else self.pieces.size
        return size + headers_bytes(self.headers) if self.headers else size

    @property
    def correlation_id(self) -> str:
        return self.given_correlation_id or ids.to_uuid(self.id)


def seal(draft: Draft, id: int, now_ms: int) -> Envelope:
    """A draft that has become a message."""
    return Envelope(
        id=id,
        enqueued_at=now_ms,
        payload=draft.payload,
        pieces=draft.pieces,
        content_type=draft.content_type,
        headers=draft.headers,
        ttl_ms=draft.ttl_ms,
        group=draft.group,
        given_correlation_id=draft.correlation_id,
        max_retries=draft.max_retries,
        is_json=draft.content_type == JSON if draft.is_json is None else draft.is_json,
    )


def headers_bytes(headers: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in headers.items()) if headers else 0


def check_draft(draft: Draft, max_payload: int) -> None:
    """Refuse what no queue can hold, naming the field."""
    if (len(draft.payload) if draft.pieces is None else draft.pieces.size) > max_payload:
        check_size("payload", draft.payload_bytes, max_payload)
    if draft.headers:
        _check_headers(draft.headers)
    if draft.priority is not DEFAULT_PRIORITY:
        check_integer("priority", draft.priority, 0, 255)
    if draft.delay_ms != 0 or isinstance(draft.delay_ms, bool):
        check_integer("delay", draft.delay_ms, 0, MAX_MS)
    if draft.deliver_at is not None:
        check_integer("deliver_at", draft.deliver_at, 0, MAX_MS)
        if draft.delay_ms:
            raise InvalidArgument("give delay or deliver_at, not both", field="deliver_at")
    if draft.ttl_ms is not None:
        check_integer("ttl", draft.ttl_ms, 1, MAX_MS)
    if draft.max_retries is not None:
        check_integer("max_retries", draft.max_retries, 0, MAX_RETRIES)
    if draft.key is not None:
        check_text("key", draft.key)
    if draft.group is not None:
        check_text("group", draft.group)
    if draft.content_type is not BYTES and draft.content_type is not JSON:
        check_text("content_type", draft.content_type)


def check_drafts(drafts: Sequence[Draft], max_payload: int) -> None:
    """Refuse a call with more messages than one may enqueue, or with one that no queue can hold."""
    if len(drafts) > MAX_BATCH:
        raise InvalidArgument(f"a call enqueues at most {MAX_BATCH} messages, not {len(drafts)}", field="messages")
    for draft in drafts:
        check_draft(draft, max_payload)


def check_size(what: str, size: int, max_payload: int) -> None:
    if size > max_payload:
        raise PayloadTooLarge(
            f"the {what} has {size} bytes, the limit is {max_payload}: send less, or raise max_payload",
            bytes=size,
            limit=max_payload,
        )


def _check_headers(headers: object) -> None:
    if not isinstance(headers, dict):
        raise InvalidArgument("headers must be a mapping of text to text", field="headers")
    for name, value in headers.items():
        if not (isinstance(name, str) and isinstance(value, str) and name):
            raise InvalidArgument(f"header {str(name)[:80]!r} must be text with a text value", field="headers")
        check_encodable("headers", name + value)
    if headers_bytes(headers) > MAX_HEADERS_BYTES:
        raise InvalidArgument(f"the headers exceed {MAX_HEADERS_BYTES} bytes", field="headers")


def normalise_correlation_id(value: object) -> str | None:
    """Trimmed, 1-128 visible ASCII characters; anything else is None, and one is minted (SPEC 1.5)."""
    if not isinstance(value, str):
        return None
    trimmed = value.strip()
    if 1 <= len(trimmed) <= 128 and all("!" <= character <= "~" for character in trimmed):
        return trimmed
    return None
