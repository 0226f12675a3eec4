"""Keys and fields in Redis.

    holdfast:buffer:{tenant}:{queue}    hash: node:epoch:lane:place -> the call, as the log has it
    holdfast:barred:{tenant}:{queue}    there while a queue is being deleted: nothing is pushed to its buffer
    holdfast:queue:{tenant}:{queue}     list: what is reserved, in order: until|id|version|priority|visible time
    holdfast:handed:{tenant}:{queue}    list: what was popped from there last, the same

A name has none of `: %` by its grammar; here each part is escaped all the same, so that no two queues' keys can meet.
"""

from uuid import UUID

from holdfast.model.names import QueueRef
from holdfast.stores.buffered.log.wal import WalPosition
from holdfast.stores.reserved_message import Reserved

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def buffer_key(ref: QueueRef) -> str:
    return f"holdfast:buffer:{_escaped(ref.tenant)}:{_escaped(ref.queue)}"


def barred_key(ref: QueueRef) -> str:
    return f"holdfast:barred:{_escaped(ref.tenant)}:{_escaped(ref.queue)}"


def reserved_key(ref: QueueRef) -> str:
    return f"holdfast:queue:{_escaped(ref.tenant)}:{_escaped(ref.queue)}"


def handed_key(ref: QueueRef) -> str:
    return f"holdfast:handed:{_escaped(ref.tenant)}:{_escaped(ref.queue)}"


def entry_of(reserved: Reserved) -> str:
    """Without its end, which Redis puts before it."""
    return "|".join(map(str, reserved))


def reserved_of(entry: bytes) -> Reserved | None:
    """None: it is no entry of ours."""
    try:
        _, *parts = entry.decode("ascii").split("|")
        return Reserved(*map(int, parts))
    except (TypeError, ValueError):
        return None


def field_of(place: WalPosition) -> str:
    return f"{place.node.hex}:{place.epoch:x}:{place.lane}:{place.place}"


def place_of(field: bytes) -> WalPosition | None:
    """None: it is no field of ours."""
    try:
        node, epoch, lane, place = field.decode("ascii").split(":")
        return WalPosition(UUID(hex=node), int(epoch, 16), int(lane), int(place))
    except ValueError:
        return None


def _escaped(part: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in part.encode())
