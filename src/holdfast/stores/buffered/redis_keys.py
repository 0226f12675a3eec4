"""Keys and fields in Redis.

    holdfast:buffer:{tenant}:{queue}    hash: node:epoch:shard:number -> the call, in the bytes of the log
    holdfast:barred:{tenant}:{queue}    exists while a queue is being deleted: nothing is pushed to its buffer
    holdfast:queue:{tenant}:{queue}     list of reserved messages, in order: until|id|version|priority|visible time
    holdfast:handed:{tenant}:{queue}    list of the entries popped from it last, in the same format

The grammar of names allows neither `:` nor `%`. Each part is escaped all the same, so that keys of two queues can never
be equal.

How to change this format: use another key prefix: servers of both versions share one Redis during an upgrade.
"""

from uuid import UUID

from holdfast.model.names import QueueRef
from holdfast.stores.buffered.log.replay import WalPosition
from holdfast.stores.reserved_message import Reserved

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def buffer_key(ref: QueueRef) -> str:
    """Return the key of a queue's buffered calls."""
    return f"holdfast:buffer:{_escaped(ref.tenant)}:{_escaped(ref.queue)}"


def barred_key(ref: QueueRef) -> str:
    """Return the key that exists while a queue takes no calls."""
    return f"holdfast:barred:{_escaped(ref.tenant)}:{_escaped(ref.queue)}"


def reserved_key(ref: QueueRef) -> str:
    """Return the key of a queue's reserved messages."""
    return f"holdfast:queue:{_escaped(ref.tenant)}:{_escaped(ref.queue)}"


def handed_key(ref: QueueRef) -> str:
    """Return the key of the entries that were popped last."""
    return f"holdfast:handed:{_escaped(ref.tenant)}:{_escaped(ref.queue)}"


def encode_reserved(reserved: Reserved) -> str:
    """Return the entry of a reserved message, without its end time, which the script in Redis puts before it."""
    return "|".join(map(str, reserved))


def decode_reserved(entry: bytes) -> Reserved | None:
    """Return the reserved message of an entry, or None if the entry is not in this format."""
    try:
        _, *parts = entry.decode("ascii").split("|")
        return Reserved(*map(int, parts))
    except (TypeError, ValueError):
        return None


def encode_position(position: WalPosition) -> str:
    """Return the field of a call, which is its position in the log."""
    return f"{position.node.hex}:{position.epoch:x}:{position.shard}:{position.number}"


def decode_position(field: bytes) -> WalPosition | None:
    """Return the position of a field, or None if the field is not in this format."""
    try:
        node, epoch, shard, number = field.decode("ascii").split(":")
        return WalPosition(UUID(hex=node), int(epoch, 16), int(shard), int(number))
    except ValueError:
        return None


def _escaped(part: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in part.encode())
