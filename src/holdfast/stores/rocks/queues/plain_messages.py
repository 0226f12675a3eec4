"""Plain messages: the keys of one, and the parts of a frame that describe many.

A plain message is due or in flight, and has only the keys of its state. It has no group, TTL, state document, payload
in pieces, or separate life record. All its keys follow from its envelope and its life. So a frame does not contain
them, and a message that is enqueued, claimed and acked between two checkpoints never has any.

A part of a frame (see `layers.py`) is a number, a key and a value:

    number         key                                                           value
    512 added      P 8 | form 1 | priority 1 | visible_at 8 | enqueued_at 8 | ids  payloads, or whole records
    513 claimed    P 8 | ids                                                     lives, as one MessagePack array
    514 finished   P 8 | ids                                                     the ends of their leases

Ids and instants are 8 bytes, big-endian. A part has everything that its replay needs. So replaying it over a later
state ends in that same state.

How to change this format: give a changed part another number, keep reading this one, and raise the format of the store
(`marker.py`).
"""

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from holdfast.model.ids import consecutive_to_bytes
from holdfast.model.message import BYTES, JSON, Draft
from holdfast.model.rules.lifecycle import Life
from holdfast.stores.formats.message_record import encode_bare_messages, encode_life, encode_message
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.queues.stored_message import StoredMessage

ADDED: Final = 512
CLAIMED: Final = 513
FINISHED: Final = 514

# The families of a plain message's keys. Each of these keys ends with the message's id.
FAMILIES = frozenset({keys.MESSAGES, keys.VISIBLE, keys.EXPIRIES, keys.LEASES})

# Changes of one family: its number, the keys, and their values. One value may stand for all keys; None deletes them.
KeyChanges = tuple[int, list[bytes], list[bytes] | bytes | None]

_HEAD = struct.Struct(">8sBBQQ")
_EXPIRY = struct.Struct(">Q16s")
_encode_lives = msgspec.msgpack.Encoder().encode
_decode_lives = msgspec.msgpack.Decoder(list[Life]).decode


class AddedForm(IntEnum):
    """The content of an added part for each message."""

    # Only the payload, of a message without any other attributes: bytes, or JSON.
    BYTES = 0
    JSON = 1
    # The whole record.
    RECORD = 2


_CONTENT_TYPES = {AddedForm.BYTES: BYTES, AddedForm.JSON: JSON}
# In bytes. A larger payload gets its own entry in a frame, so that it need not stay in memory (`layers.py`).
_MAX_BYTES = 32 << 10
# Module-level names, because looking up an enum member costs as much as a field of a message.
_BYTES, _JSON, _RECORD = AddedForm.BYTES, AddedForm.JSON, AddedForm.RECORD


def choose_form(drafts: Sequence[Draft]) -> AddedForm | None:
    """Return the shortest form that can describe all these drafts in one part.

    Return None if they differ in priority, or if any of them becomes a message that is not plain or not due at once.
    """
    first = drafts[0]
    priority, content_type = first.priority, first.content_type
    form = _BYTES if content_type == BYTES else _JSON if content_type == JSON else _RECORD
    for draft in drafts:
        if (
            draft.priority != priority
            or draft.delay_ms
            or draft.deliver_at is not None
            or draft.ttl_ms is not None
            or draft.key is not None
            or draft.group is not None
            or draft.pieces is not None
            or len(draft.payload) > _MAX_BYTES
        ):
            return None
        if (
            draft.headers
            or draft.content_type is not content_type
            or draft.correlation_id is not None
            or draft.max_retries is not None
            or draft.is_json is not None
        ):
            form = _RECORD
    return form


# --- Keys ------------------------------------------------------------------------------------------------------


def iterate_keys(entry: StoredMessage) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the keys of a plain message, with their families and values."""
    p, life, id16 = entry.p, entry.life, entry.id16
    # `encode_message` stores the values that the message was enqueued with; the life still has them, because a plain
    # message has no life record.
    yield keys.MESSAGES, p + id16, encode_message(entry.envelope, life)
    if life.lease is None:
        yield keys.VISIBLE, visible_key(entry), b""
    else:
        yield keys.EXPIRIES, expiry_key(entry), b""
        yield keys.LEASES, p + id16, encode_life(life, has_state=False)


def visible_key(entry: StoredMessage) -> bytes:
    """Return a Ready message's key in the order of claims."""
    return _visible(entry.p, entry.life, entry.id16)


def expiry_key(entry: StoredMessage) -> bytes:
    """Return the key of the end of a message's lease."""
    lease = entry.life.lease
    assert lease is not None
    return entry.p + _EXPIRY.pack(lease.expires_at, entry.id16)


def _visible(p: bytes, life: Life, id16: bytes) -> bytes:
    return _visible_head(p, life) + id16


def _visible_head(p: bytes, life: Life) -> bytes:
    return p + keys.PRIORITIES[life.priority] + keys.instant(life.visible_at)


# --- Parts of a frame ------------------------------------------------------------------------------------------


def make_keys_of_added(
    p: bytes, entries: list[StoredMessage], form: AddedForm
) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return the names, records and keys in the order of claims of new messages of one priority that were enqueued
    together."""
    envelope, life = entries[0].envelope, entries[0].life
    if form is _RECORD:
        records = [encode_message(entry.envelope, life) for entry in entries]
    else:
        payloads = [entry.envelope.payload for entry in entries]
        records = encode_bare_messages(payloads, envelope.content_type, envelope.enqueued_at, life)
    head = _visible_head(p, life)
    return [p + entry.id16 for entry in entries], records, [head + entry.id16 for entry in entries]


def encode_added(p: bytes, entries: list[StoredMessage], form: AddedForm) -> tuple[int, bytes, list[bytes]]:
    """Return the part for new messages of one priority that were enqueued together."""
    envelope, life = entries[0].envelope, entries[0].life
    head = _HEAD.pack(p, form, life.priority, life.visible_at, envelope.enqueued_at)
    values = (
        [encode_message(entry.envelope, life) for entry in entries]
        if form is _RECORD
        else [entry.envelope.payload for entry in entries]
    )
    return ADDED, head + _ids(entries), values


def encode_claimed(p: bytes, entries: list[StoredMessage], lives: list[Life]) -> tuple[int, bytes, bytes]:
    """Return the part for claimed messages.

    `lives` are their new lives. Each has a lease, and still has the priority and visible_at of the message's key in the
    order of claims.
    """
    return CLAIMED, p + _ids(entries), _encode_lives(lives)


def encode_finished(p: bytes, entries: list[StoredMessage]) -> tuple[int, bytes, bytes]:
    """Return the part for messages in flight that are removed."""
    ends = [lease.expires_at for entry in entries if (lease := entry.life.lease) is not None]
    return FINISHED, p + _ids(entries), struct.pack(f">{len(entries)}Q", *ends)


def decode_part(number: int, key: bytes, value: bytes | list[bytes]) -> list[KeyChanges]:
    """Return the changes of keys that a part describes."""
    if number == ADDED:
        assert isinstance(value, list)
        return _decode_added(key, value)
    assert isinstance(value, bytes)
    p, ids = key[: keys.P_SIZE], consecutive_to_bytes(_instants(key[keys.P_SIZE :]))
    names = [p + id16 for id16 in ids]
    if number == CLAIMED:
        lives = _decode_lives(value)
        ends = [lease.expires_at for life in lives if (lease := life.lease) is not None]
        return [
            (keys.VISIBLE, [_visible(p, life, id16) for life, id16 in zip(lives, ids, strict=True)], None),
            (keys.EXPIRIES, _expiries(p, ends, ids), b""),
            (keys.LEASES, names, [encode_life(life, has_state=False) for life in lives]),
        ]
    if number == FINISHED:
        expiries = _expiries(p, _instants(value), ids)
        return [(keys.EXPIRIES, expiries, None), (keys.LEASES, names, None), (keys.MESSAGES, names, None)]
    raise ValueError(f"a frame has a part of the unknown kind {number}")


def changed_keys(number: int, key: bytes) -> tuple[tuple[int, ...], int]:
    """Return the families in which a part changes keys, and its number of messages; each has one key in each family."""
    if number == ADDED:
        return _ADDED_FAMILIES, (len(key) - _HEAD.size) // 8
    return _CLAIMED_FAMILIES if number == CLAIMED else _FINISHED_FAMILIES, (len(key) - keys.P_SIZE) // 8


_ADDED_FAMILIES = (keys.MESSAGES, keys.VISIBLE)
_CLAIMED_FAMILIES = (keys.VISIBLE, keys.EXPIRIES, keys.LEASES)
_FINISHED_FAMILIES = (keys.EXPIRIES, keys.LEASES, keys.MESSAGES)


def _decode_added(key: bytes, values: list[bytes]) -> list[KeyChanges]:
    p, number, priority, visible_at, enqueued_at = _HEAD.unpack_from(key)
    form, life = AddedForm(number), Life(priority=priority, visible_at=visible_at)
    if form is not _RECORD:
        values = encode_bare_messages(values, _CONTENT_TYPES[form], enqueued_at, life)
    ids = consecutive_to_bytes(_instants(key[_HEAD.size :]))
    head = _visible_head(p, life)
    return [(keys.MESSAGES, [p + id16 for id16 in ids], values), (keys.VISIBLE, [head + id16 for id16 in ids], b"")]


def _expiries(p: bytes, ends: Sequence[int], ids: list[bytes]) -> list[bytes]:
    return [p + _EXPIRY.pack(ends_at, id16) for ends_at, id16 in zip(ends, ids, strict=True)]


def _ids(entries: list[StoredMessage]) -> bytes:
    return struct.pack(f">{len(entries)}Q", *[entry.envelope.id for entry in entries])


def _instants(raw: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(raw) // 8}Q", raw)
