"""What a route is made of: its way in, and the fields of its query."""

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.doors.http.app import Handler
from holdfast.doors.http.calls import Call
from holdfast.doors.identity import Identity
from holdfast.model.errors import InvalidArgument
from holdfast.model.names import QueueRef

_FLAGS = {"0": False, "false": False, "1": True, "true": True}


class Way(NamedTuple):
    """One method of one path. `identity` says who calls it where the server's own does not."""

    method: str
    path: str
    operation: str
    handler: Handler
    identity: Identity | None = None


def queue_in_path(call: Call) -> QueueRef:
    return call.ref(call.path["tenant"], call.path["queue"])


def integer_of(fields: Mapping[str, str], name: str) -> int | None:
    """None if the field is left out. Its range is the model's to check."""
    text = fields.get(name)
    if text is None:
        return None
    # No number of ours has more digits, and reading a very long one takes its time.
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidArgument(f"{name} {text[:80]!r} is not a whole number", field=name)
    return int(text)


def flag_of(fields: Mapping[str, str], name: str) -> bool:
    text = fields.get(name, "0")
    if text not in _FLAGS:
        raise InvalidArgument(f"{name} {text[:80]!r} is neither 1 nor 0", field=name)
    return _FLAGS[text]
