"""Convert between a request struct and its document on one wire, whose type is derived field by field."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import NODEFAULT

from holdfast.model.names import QueueRef

R = TypeVar("R", bound=msgspec.Struct)


class FieldShape(NamedTuple):
    """The wire type of one model type, and the conversions both ways."""

    type: Any
    write: Callable[[Any], Any]
    # The second argument is the queue of the call.
    read: Callable[[Any, QueueRef], Any]


class Binding(Generic[R]):
    """The conversion of one request type to and from its document on one wire.

    `shapes` lists the types that this wire writes differently; all others are written unchanged. Fields named in
    `apart` are not part of the document (they are sent in a path, or not at all), and `more` are fields that only the
    document has.
    """

    def __init__(
        self,
        request: type[R],
        shapes: Mapping[Any, FieldShape],
        *,
        apart: Collection[str] = (),
        more: tuple[tuple[Any, ...], ...] = (),
    ) -> None:
        self._request = request
        fields: list[Any] = list(more)
        self._shapes: dict[str, FieldShape | None] = {}
        for field in msgspec.structs.fields(request):
            if field.name in apart:
                continue
            shape = self._shapes[field.name] = shapes.get(field.type)
            kind = field.type if shape is None else shape.type
            if field.default is NODEFAULT and field.default_factory is NODEFAULT:
                fields.append((field.name, kind))
            elif shape is not None:
                default = field.default_factory() if field.default is NODEFAULT else field.default
                fields.append((field.name, kind, shape.write(default)))
            elif field.default is NODEFAULT:
                fields.append((field.name, kind, msgspec.field(default_factory=field.default_factory)))
            else:
                fields.append((field.name, kind, field.default))
        # An unknown field is refused by name. Fields that have their default value are not sent.
        self.type: Any = msgspec.defstruct(
            request.__name__,
            fields,
            module=request.__module__,
            namespace={"__doc__": request.__doc__},
            frozen=True,
            kw_only=True,
            forbid_unknown_fields=True,
            omit_defaults=True,
        )

    @property
    def fields(self) -> Mapping[str, FieldShape | None]:
        """Return the names of the request's fields in the document, with their shapes."""
        return self._shapes

    def document(self, request: R, **more: Any) -> Any:
        """Return the document of a request. `more` gives the fields that only the document has."""
        for name, shape in self._shapes.items():
            value = getattr(request, name)
            more[name] = value if shape is None else shape.write(value)
        return self.type(**more)

    def request(self, document: Any, ref: QueueRef, **apart: Any) -> R:
        """Return the request of a document. `apart` gives the fields that are not part of the document."""
        for name, shape in self._shapes.items():
            value = getattr(document, name)
            apart[name] = value if shape is None else shape.read(value, ref)
        return self._request(**apart)
