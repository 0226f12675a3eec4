"""Encoding of payloads: bytes stay unchanged, and anything else becomes JSON."""

import builtins
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeVar, get_args, overload
from uuid import UUID

import msgspec

from holdfast.model.errors import InvalidArgument
from holdfast.model.message import BYTES, JSON

T = TypeVar("T")


def encode(payload: Any) -> tuple[bytes, str]:
    """Return the bytes and the content type of a payload. Raise `InvalidArgument` for a value without a JSON form."""
    if isinstance(payload, bytes):
        return payload, BYTES
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload), BYTES
    return encode_json(payload), JSON


def encode_json(value: Any) -> bytes:
    """Return a value as JSON: a value that msgspec encodes, a pydantic model, a mapping, or a subclass of these.

    Raise `InvalidArgument`, which says where in the value, for any other value, for NaN and for infinities.
    """
    try:
        encoded = msgspec.json.encode(value, enc_hook=_encode_other)
        # msgspec encodes NaN as null. A value that is JSON text already contains every null on purpose.
        if b"null" in encoded and not isinstance(value, msgspec.Raw):
            _refuse_nan(msgspec.to_builtins(value, enc_hook=_encode_other))
        return encoded
    except _UNENCODABLE as error:
        raise InvalidArgument(
            f"a payload of type {type(value).__name__} cannot be encoded as JSON: {error}, at {_where(value)}; give "
            "bytes, or a value with a JSON form",
            field="payload",
        ) from None


@overload
def decode_json(payload: bytes, type: None) -> Any: ...
@overload
def decode_json(payload: bytes, type: type[T]) -> T: ...
def decode_json(payload: bytes, type: type[T] | None) -> T | Any:
    """Decode JSON into a msgspec struct, a dataclass, a pydantic model or any type that msgspec knows.

    Raise `InvalidArgument` if the payload is not JSON of that type.
    """
    try:
        return msgspec.json.decode(payload) if type is None else _decode_typed(payload, type)
    except ValueError as error:  # msgspec's and pydantic's errors are ValueErrors
        wanted = "JSON" if type is None else name_of(type)
        raise InvalidArgument(f"the payload is not {wanted}: {_why(error)}", field="payload") from error


def decode_as(payload: bytes, type: Any, *, is_json: bool) -> Any:
    """Decode a payload into the type of a handler's annotation: bytes, text, or JSON into a type.

    `Any` decodes JSON and leaves other payloads as bytes.
    """
    if type is bytes or (type is Any and not is_json):
        return payload
    if type is Any:
        return decode_json(payload, None)
    if type is str and not is_json:
        try:
            return payload.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"the payload is not text: {error}", field="payload") from error
    return decode_json(payload, type)


def check_decodable(type: Any) -> None:
    """Raise `InvalidArgument` for a type that no payload can be decoded into."""
    if type is Any or type is bytes or _pydantic_of(type) is not None:
        return
    import msgspec.inspect  # imported here because only handlers need it

    try:
        info = msgspec.inspect.type_info(type)
    except TypeError as error:
        raise InvalidArgument(f"a payload cannot be decoded into {name_of(type)}: {error}") from None
    if isinstance(info, msgspec.inspect.CustomType):
        raise InvalidArgument(
            f"a payload cannot be decoded into {name_of(type)}: give a msgspec Struct, a dataclass, a TypedDict, a "
            "pydantic model, a builtin type or bytes"
        )


def name_of(type: Any) -> str:
    """Return the name of a class, or the text of a type such as `list[Order]`."""
    return type.__name__ if isinstance(type, builtins.type) and not get_args(type) else str(type)


def _decode_typed(payload: bytes, type: Any) -> Any:
    if (validate := _pydantic_of(type)) is not None:
        return validate(payload)
    return msgspec.json.decode(payload, type=type, dec_hook=_decode_other)


def _pydantic_of(type: Any) -> Callable[[bytes], Any] | None:
    """Return the validator of a pydantic model or dataclass, found by its methods because pydantic is optional."""
    if (validate := getattr(type, "model_validate_json", None)) is not None:
        return validate  # type: ignore[no-any-return]  # the attribute of an unknown class
    return getattr(getattr(type, "__pydantic_validator__", None), "validate_json", None)


def _decode_other(type: Any, value: Any) -> Any:
    """Decode a value inside a type of msgspec, such as `list[Model]`."""
    if (validate := getattr(type, "model_validate", None)) is not None:
        return validate(value)
    raise NotImplementedError(f"a payload cannot be decoded into {name_of(type)}")


def _why(error: ValueError) -> str:
    """Return the reason on one line, with the names of the fields.

    The text of a pydantic error has many lines and quotes the payload.
    """
    if not callable(errors := getattr(error, "errors", None)):
        return str(error)
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'payload'}: {each['msg']}" for each in errors()[:5])


def _refuse_nan(value: Any) -> None:
    """Raise `ValueError` for NaN and infinities, which JSON does not have and null would replace."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a JSON number")
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        for each in value:
            _refuse_nan(each)


def _encode_other(value: Any) -> Any:
    """Return a value that msgspec cannot encode as one that it can encode.

    A subclass of one of its types (`MessageId` is a `str`) becomes the type itself. Pydantic models are recognised by
    their method, because pydantic is optional.
    """
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    match value:
        case str():
            return str.__str__(value)
        case int() if not isinstance(value, bool):
            return int(value)
        case float():
            return float(value)
        case bytes():
            return bytes(value)
        case datetime():
            return datetime.combine(value.date(), value.timetz())
        case date():
            return date(value.year, value.month, value.day)
        case time():
            return time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo)
        case timedelta():
            return timedelta(value.days, value.seconds, value.microseconds)
        case Decimal():
            return Decimal(value)
        case UUID():
            return UUID(int=value.int)
        case Mapping():
            return dict(value)
        case deque():
            return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _where(value: Any) -> str:
    """Return the path to the first part of a value that cannot be encoded, such as `$.order.lines[2]`."""
    path = "$"
    for _ in range(_MAX_PATH):
        inside = _failing_part(value)
        if inside is None:
            break
        step, value = inside
        path += step
    return path


def _failing_part(value: Any) -> tuple[str, Any] | None:
    if isinstance(value, Mapping):
        parts = ((f".{key}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | deque):
        parts = ((f"[{index}]", part) for index, part in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        parts = ((f".{field.name}", getattr(value, field.name)) for field in fields(value))
    elif isinstance(value, msgspec.Struct):
        parts = ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
    else:
        return None
    return next((each for each in parts if not _is_encodable(each[1])), None)


def _is_encodable(value: Any) -> bool:
    try:
        msgspec.json.encode(value, enc_hook=_encode_other)
    except _UNENCODABLE:
        return False
    return True


# The errors that msgspec raises for a value that it cannot encode.
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)
# The deepest nesting that an error message searches for the invalid part.
_MAX_PATH = 20
