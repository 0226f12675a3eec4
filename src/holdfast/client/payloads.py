"""Payloads to bytes and back: bytes go as they are, anything else as JSON."""

import math
from typing import Any, TypeVar, overload

import msgspec

from holdfast.model.errors import InvalidArgument
from holdfast.model.message import BYTES, JSON

T = TypeVar("T")


def encode(payload: Any) -> tuple[bytes, str]:
    """The payload's bytes and content type; `InvalidArgument` for what JSON cannot hold."""
    if isinstance(payload, bytes):
        return payload, BYTES
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload), BYTES
    return encode_json(payload), JSON


def encode_json(value: Any) -> bytes:
    try:
        encoded = msgspec.json.encode(value, enc_hook=_encode_other)
        if b"null" in encoded:
            _refuse_nan(msgspec.to_builtins(value, enc_hook=_encode_other))
        return encoded
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(
            f"a payload of type {type(value).__name__} cannot be encoded as JSON ({error}): "
            "give bytes, or what JSON can hold",
            field="payload",
        ) from None


@overload
def decode_json(payload: bytes, type: None) -> Any: ...
@overload
def decode_json(payload: bytes, type: type[T]) -> T: ...
def decode_json(payload: bytes, type: type[T] | None) -> T | Any:
    """Decode, into a msgspec Struct, a dataclass, a pydantic model or any type msgspec knows."""
    try:
        if type is None:
            return msgspec.json.decode(payload)
        if (validate := getattr(type, "model_validate_json", None)) is not None:
            return validate(payload)
        return msgspec.json.decode(payload, type=type)
    except ValueError as error:  # msgspec's and pydantic's errors are ValueErrors
        wanted = "JSON" if type is None else type.__name__
        raise InvalidArgument(f"the payload is not {wanted}: {error}", field="payload") from error


def _refuse_nan(value: Any) -> None:
    """JSON has no NaN and no infinity; written as null they would come back as something else."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a JSON number")
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        for each in value:
            _refuse_nan(each)


def _encode_other(value: Any) -> Any:
    """Pydantic models are known by their method: the library need not be installed."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not a JSON type")
