"""Parsing of calls. A value of the wrong type is refused with its position in the call."""

import msgspec

from holdfast.model.errors import InvalidArgument
from holdfast.telemetry.log import printable
from holdfast.wire.framed.calls import HOT_CALLS, NAMED, CallFrame, operation_of, read_call

_MAX_SHOWN = 200


class NotMessagePack(Exception):
    """The body of a frame is not MessagePack. The connection ends with this error."""


def parse_call(body: bytes) -> CallFrame:
    """Return the call in the body of a CALL frame. Raise `InvalidArgument` or `NotMessagePack`."""
    try:
        return read_call(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        raise _wrong_shape(printable(text[:_MAX_SHOWN]), printable(path.rstrip("`")[:_MAX_SHOWN])) from None
    except msgspec.DecodeError as error:
        raise NotMessagePack(printable(str(error)[:_MAX_SHOWN])) from None
    except UnicodeDecodeError:
        raise InvalidArgument("a text is not UTF-8", field="call") from None
    except RecursionError:
        raise InvalidArgument("the call is nested too deeply", field="call") from None


def _wrong_shape(text: str, path: str) -> InvalidArgument:
    if path == "[0]":
        known = sorted([*NAMED, *(operation_of(each) for each in HOT_CALLS)])
        return InvalidArgument(f"{text}: give one of the operations {', '.join(known)}", field="operation")
    # The fifth element has the arguments by name. The elements of other calls have no names on the wire.
    field = path.removeprefix("[4].") or "call"
    return InvalidArgument(f"{field}: {text}", field=field)
