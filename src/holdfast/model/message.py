"""Messages: the form in which callers give them, the form in which stores keep them, and receipts of leases."""

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
# The largest part, in bytes, of a payload that is read in parts. It bounds the memory that each reader needs.
MAX_PART = 4 << 20


class State(StrEnum):
    """The four states of a message."""

    # `Enum.__hash__` is written in Python. The members are dictionary keys on the hot path, where `str`'s is faster.
    __hash__ = str.__hash__

    READY = "ready"
    IN_FLIGHT = "in_flight"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Receipt(NamedTuple):
    """The proof of a lease: the id of the message, the secret token of the lease, and the fencing version.

    As text it is the base64url of the id (16 bytes), the token (16) and the version (8).
    """

    id: int
    token: bytes
    version: int

    def __str__(self) -> str:
        raw = ids.to_bytes(self.id) + self.token + self.version.to_bytes(8, "big")
        return binascii.b2a_base64(raw, newline=False).translate(_URL_SAFE).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: object) -> Self:
        """Return the receipt of a text, or raise `InvalidArgument`. A receipt is returned as it is."""
        if isinstance(text, cls):
            return text
        if isinstance(text, str) and len(text) == _RECEIPT_LENGTH:
            try:
                raw = binascii.a2b_base64(text.encode().translate(_STANDARD) + b"==", strict_mode=True)
                id16, token, version = _RECEIPT.unpack(raw)
                return cls(ids.from_bytes(id16), token, version)
            except (binascii.Error, UnicodeEncodeError, struct.error, InvalidArgument):
                pass  # the error below is raised for all of them
        raise InvalidArgument(f"{str(text)[:80]!r} is not a receipt: give the one that the claim returned")


def is_receipt(text: str) -> bool:
    """Return whether a text has the length of a receipt; an id is shorter."""
    return len(text) == _RECEIPT_LENGTH


_RECEIPT = struct.Struct(">16s16sQ")
_RECEIPT_LENGTH = 54
# `base64.urlsafe_b64encode` makes its table anew in each call. Each delivery and each verdict has a receipt, so the
# translation is done here with constant tables.
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_STANDARD = bytes.maketrans(b"-_", b"+/")


class NewMessage:
    """A payload with options of its own, for a call that enqueues several messages.

    The options are those of `Queue.enqueue`; an option that is given here overrides that of the call.

        queue.enqueue([NewMessage({"n": 1}, key="a"), NewMessage({"n": 2}, key="b", priority=1)])
    """

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
    """A payload that the store keeps in pieces, apart from its message: the blob id, the size in bytes, the CRC-32.

    The store chooses the blob id and never uses it for another payload, unless an operator replaces the
    payload of the message.
    """

    blob_id: int
    size: int
    checksum: int


class Draft(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message to enqueue. `check_draft` checks its fields."""

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
    # True: the payload was given as JSON and is returned as JSON. None: the content type decides.
    is_json: bool | None = None
    # Set if `Store.stage` has stored the payload already; `payload` is then empty. It is the last field because no
    # caller may set it: protocols write the fields before it.
    pieces: Pieces | None = None

    @property
    def payload_bytes(self) -> int:
        """Return the size of the payload."""
        return len(self.payload) if self.pieces is None else self.pieces.size

    @property
    def bytes(self) -> int:
        """Return the size of the payload and the headers."""
        size = len(self.payload) if self.pieces is None else self.pieces.size
        return size + headers_bytes(self.headers) if self.headers else size


class AboutMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The identity of a message, for structs about one message. The texts are made when read, because few are."""

    snowflake: int
    # None: the correlation id is the message's id.
    given_correlation_id: str | None = None

    @property
    def id(self) -> str:
        """Return the id as UUID text."""
        return ids.to_uuid(self.snowflake)

    @property
    def correlation_id(self) -> str:
        """Return the correlation id that was given, or else the id."""
        return self.given_correlation_id or ids.to_uuid(self.snowflake)


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The part of a stored message that never changes, except that an operator may replace the payload."""

    id: int
    enqueued_at: int
    payload: bytes
    # Set if the payload is stored apart; `payload` is then empty.
    pieces: Pieces | None = None
    content_type: str = BYTES
    headers: dict[str, str] = {}
    ttl_ms: int | None = None
    group: str | None = None
    # None: the correlation id is the message's id. It is not stored then, which saves the bytes.
    given_correlation_id: str | None = None
    max_retries: int | None = None
    is_json: bool = False

    @property
    def bytes(self) -> int:
        """Return the size of the payload and the headers."""
        size = len(self.payload) if self.pieces is None else self.pieces.size
        return size + headers_bytes(self.headers) if self.headers else size

    @property
    def correlation_id(self) -> str:
        """Return the correlation id that was given, or else the id."""
        return self.given_correlation_id or ids.to_uuid(self.id)


def make_envelope(draft: Draft, id: int, now_ms: int) -> Envelope:
    """Return the envelope of a new message."""
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
    """Return the size of all names and values in UTF-8."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in headers.items()) if headers else 0


def check_draft(draft: Draft, max_payload: int) -> None:
    """Raise `InvalidArgument`, which names the field, or `PayloadTooLarge` for a draft that no queue can hold."""
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
    """Raise `InvalidArgument` for a call with more than `MAX_BATCH` messages, and check each draft."""
    if len(drafts) > MAX_BATCH:
        raise InvalidArgument(f"a call enqueues at most {MAX_BATCH} messages, not {len(drafts)}", field="messages")
    for draft in drafts:
        check_draft(draft, max_payload)


def check_size(name: str, size: int, max_payload: int) -> None:
    """Raise `PayloadTooLarge` if `size` is above the limit. `name` is the noun to show in the error."""
    if size > max_payload:
        raise PayloadTooLarge(
            f"the {name} has {size} bytes, the limit is {max_payload}: send less, or raise max_payload",
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
    """Return a correlation id without the spaces around it; None if it is not 1-128 visible ASCII characters.

    After None the message's id is used instead (SPEC 1.5).
    """
    if not isinstance(value, str):
        return None
    trimmed = value.strip()
    if 1 <= len(trimmed) <= 128 and all("!" <= character <= "~" for character in trimmed):
        return trimmed
    return None
