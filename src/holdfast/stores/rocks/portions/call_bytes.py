"""Calls between the processes of a divided store, and their results, as bytes."""

from functools import reduce
from operator import or_
from typing import Any

import msgspec

from holdfast.stores.rocks.portions.calls import RESULTS, PortionCall

_encode = msgspec.msgpack.Encoder().encode
_decode_call = msgspec.msgpack.Decoder(reduce(or_, RESULTS)).decode
_decoders = {call: msgspec.msgpack.Decoder(result).decode for call, result in RESULTS.items()}

write_portion_call = _encode
write_portion_result = _encode


def read_portion_call(body: bytes) -> PortionCall:
    """Return the call. Raise `msgspec.DecodeError` if it is none."""
    return _decode_call(body)


def read_portion_result(call: PortionCall, body: bytes) -> Any:
    """Return the result of a call."""
    return _decoders[type(call)](body)
