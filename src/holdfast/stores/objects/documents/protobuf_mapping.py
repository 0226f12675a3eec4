"""Convert stored structs to the messages of `objects.proto`, and back.

A struct and its message have the same fields, by name. A field that is None is not set in the message, and a field that
is not set gets the struct's default. `tests/stores/objects/documents/test_published_format.py` compares the fields of
all structs with those of their messages, so a field that is missing in `objects.proto` is found there.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from google.protobuf.message import DecodeError
from msgspec.structs import asdict

from holdfast.model.rules.lifecycle import Lease
from holdfast.stores.objects.documents import objects_pb2
from holdfast.stores.objects.documents.bodies import (
    GroupBody,
    KeyBody,
    LedgerBody,
    MessageBody,
    NodeBody,
    QuotaGuardBody,
    Schedule,
    SegmentBody,
    StepBody,
)

T = TypeVar("T", bound=msgspec.Struct)

# The structs by the name of their kind in the message `Body`.
KINDS: dict[str, type[msgspec.Struct]] = {
    "message": MessageBody,
    "key": KeyBody,
    "group": GroupBody,
    "ledger": LedgerBody,
    "schedule": Schedule,
    "quota_guard": QuotaGuardBody,
    "node": NodeBody,
    "step": StepBody,
    "segment": SegmentBody,
}
_NAMES = {struct: name for name, struct in KINDS.items()}


class DamagedBody(Exception):
    """The body of a document cannot be read: it is damaged, or of another kind than its key says."""


class _FieldConverter(NamedTuple):
    to_message: Callable[[Any], Any]
    from_message: Callable[[Any], Any]


def _ledger_claims(open: Mapping[int, tuple[int, Iterable[tuple[int, bytes, int]]]]) -> list[dict[str, Any]]:
    return [
        {
            "number": number,
            "claimed_at": claimed_at,
            "receipts": [{"id": id, "token": token, "version": version} for id, token, version in receipts],
        }
        for number, (claimed_at, receipts) in open.items()
    ]


def _open_claims(claims: Iterable[Any]) -> dict[int, tuple[int, list[tuple[int, bytes, int]]]]:
    return {
        each.number: (each.claimed_at, [(one.id, one.token, one.version) for one in each.receipts]) for each in claims
    }


# Fields whose Python type has no direct counterpart.
_CONVERTERS: dict[tuple[type[msgspec.Struct], str], _FieldConverter] = {
    (Lease, "ledger"): _FieldConverter(
        lambda ledger: {"consumer": ledger[0], "number": ledger[1]}, lambda message: (message.consumer, message.number)
    ),
    (LedgerBody, "open"): _FieldConverter(_ledger_claims, _open_claims),
    (SegmentBody, "emptied"): _FieldConverter(
        lambda emptied: [{"key": key, "upto": upto} for key, upto in emptied],
        lambda messages: [(each.key, each.upto) for each in messages],
    ),
}


class _StructMapping(Generic[T]):
    """The conversion of one struct."""

    def __init__(self, struct: type[T]) -> None:
        self._struct = struct
        self._converters: dict[str, _FieldConverter] = {}
        # Required fields of the struct that a message leaves out: absent and empty ones.
        self._required_lists: list[str] = []
        self._required_optionals: dict[str, None] = {}
        info = msgspec.inspect.type_info(struct)
        assert isinstance(info, msgspec.inspect.StructType)
        for field in info.fields:
            converter = _CONVERTERS.get((struct, field.name)) or _converter_of(field.type)
            if converter is not None:
                self._converters[field.name] = converter
            if field.required and isinstance(field.type, msgspec.inspect.ListType):
                self._required_lists.append(field.name)
            if field.required and isinstance(field.type, msgspec.inspect.UnionType):
                self._required_optionals[field.name] = None

    def to_fields(self, value: T) -> dict[str, Any]:
        """Return the fields of the message."""
        fields = asdict(value)
        for name, converter in self._converters.items():
            if fields[name] is not None:
                fields[name] = converter.to_message(fields[name])
        return fields

    def from_message(self, message: Any) -> T:
        """Return the struct."""
        fields: dict[str, Any] = {**self._required_optionals, **{name: [] for name in self._required_lists}}
        for field, value in message.ListFields():
            name = field.name
            converter = self._converters.get(name)
            fields[name] = value if converter is None else converter.from_message(value)
        return self._struct(**fields)


def _converter_of(kind: msgspec.inspect.Type) -> _FieldConverter | None:
    """Return the converter of a field by its type; None if both sides have the same values."""
    if isinstance(kind, msgspec.inspect.UnionType):
        [kind] = [each for each in kind.types if not isinstance(each, msgspec.inspect.NoneType)]
    match kind:
        case msgspec.inspect.EnumType(cls=enum):
            assert issubclass(enum, StrEnum)
            return _FieldConverter(lambda member: member.value, enum)
        case msgspec.inspect.StructType(cls=struct):
            mapping: _StructMapping[Any] = _StructMapping(struct)
            return _FieldConverter(mapping.to_fields, mapping.from_message)
        case msgspec.inspect.ListType(item_type=item):
            if (converter := _converter_of(item)) is None:
                return _FieldConverter(lambda values: values, list)
            to_message, from_message = converter
            return _FieldConverter(
                lambda values: [to_message(each) for each in values],
                lambda messages: [from_message(each) for each in messages],
            )
        case msgspec.inspect.DictType():
            return _FieldConverter(lambda values: values, dict)
    return None


_MAPPINGS: dict[str, _StructMapping[Any]] = {name: _StructMapping(struct) for name, struct in KINDS.items()}


def encode(body: msgspec.Struct) -> bytes:
    """Return the encoded `Body` of a struct."""
    name = _NAMES[type(body)]
    raw: bytes = objects_pb2.Body(**{name: _MAPPINGS[name].to_fields(body)}).SerializeToString()
    return raw


class BodyDecoder(Generic[T]):
    """A function that returns the struct of an encoded `Body`. It raises `DamagedBody`."""

    def __init__(self, struct: type[T]) -> None:
        self._name = _NAMES[struct]
        self._mapping: _StructMapping[T] = _MAPPINGS[self._name]

    def __call__(self, raw: bytes) -> T:
        try:
            body = objects_pb2.Body.FromString(raw)
            if (kind := body.WhichOneof("kind")) != self._name:
                raise DamagedBody(f"the document is a {kind}, not a {self._name}")
            return self._mapping.from_message(getattr(body, self._name))
        except (DecodeError, TypeError, ValueError) as error:
            raise DamagedBody(str(error)) from None


decode_message = BodyDecoder(MessageBody)
