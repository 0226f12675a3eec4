"""A handler: the function, what its parameters take, and its options."""

import inspect
import typing
from collections.abc import Callable
from operator import itemgetter
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from holdfast.client.message import Message
from holdfast.client.payloads.encoding import check_decodable, decode_as
from holdfast.model.answers import Delivery
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import JSON
from holdfast.worker.exceptions import HandlerDied
from holdfast.worker.options import Options, Pool
from holdfast.worker.outcome import bad_payload

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_COLLECTORS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_RULE = (
    "the worker gives a handler the payload, in its first parameter, and the message, in the one annotated "
    "holdfast.Message or named `message`"
)


class Parameter(NamedTuple):
    name: str
    type: Any
    # Of a positional-only one; any other is given by its name, so that what stands between may have its default.
    position: int | None


class Signature(NamedTuple):
    """Which parameters the worker fills, each None where the function does not ask for it."""

    payload: Parameter | None
    message: Parameter | None

    def decode(self, delivery: Delivery) -> Any:
        """The payload as the annotation asks; `BadPayload` if it is not that."""
        if self.payload is None:
            return None
        is_json = delivery.is_json or delivery.content_type == JSON or delivery.content_type.endswith("+json")
        try:
            return decode_as(delivery.payload, self.payload.type, is_json=is_json)
        except InvalidArgument as error:
            raise bad_payload(error) from error

    def call(self, function: Callable[..., Any], payload: Any, message: Message) -> Any:
        filled = [
            (each, value) for each, value in ((self.payload, payload), (self.message, message)) if each is not None
        ]
        by_position = sorted(
            ((each.position, value) for each, value in filled if each.position is not None), key=itemgetter(0)
        )
        named = {each.name: value for each, value in filled if each.position is None}
        return function(*(value for _, value in by_position), **named)


class Handler(NamedTuple):
    name: str
    function: Callable[..., Any]
    signature: Signature
    options: Options


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def check_function(function: object) -> None:
    if not callable(function) or isinstance(function, type):
        raise InvalidArgument(
            f"a handler is a function, not {str(function)[:80]}: write @worker.handler(...) above a def"
        )
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidArgument(
            f"{name_of(function)}() is a generator: a handler returns when its work is done, and yields nothing"
        )


def read_signature(function: Callable[..., Any]) -> Signature:
    """What the parameters ask for; `InvalidArgument` for one that the worker cannot fill."""
    name = name_of(function)
    hints = _hints(function, name)
    payload: Parameter | None = None
    message: Parameter | None = None
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind in _COLLECTORS:
            continue
        hint = hints.get(parameter.name, Any)
        asked = Parameter(
            parameter.name, hint, position if parameter.kind is inspect.Parameter.POSITIONAL_ONLY else None
        )
        if message is None and _asks_for_message(parameter.name, hint):
            message = asked
        elif payload is None and parameter.kind in _BY_POSITION and parameter.default is inspect.Parameter.empty:
            payload = asked
            _check_payload(name, payload)
        elif parameter.default is inspect.Parameter.empty:
            raise InvalidArgument(
                f"{name}() has a parameter {parameter.name!r} that nobody fills: {_RULE}. Give it a default",
                field=parameter.name,
            )
    return Signature(payload, message)


def check_importable(function: Callable[..., Any]) -> str:
    """`module:name` of a function that another process can import."""
    module, name = getattr(function, "__module__", None), name_of(function)
    if not inspect.isfunction(function) or module is None or "<" in name:
        raise InvalidArgument(
            f"{name} cannot run in a process of its own, which has to import it: define it with `def` at the top of "
            "a module",
            field="pool",
        )
    return f"{module}:{name}"


def late_start(handler: Handler) -> HandlerDied:
    """Return the error of a handler's process that did not start in its time."""
    limit_s = (handler.options.startup_timeout_ms or 0) / 1_000
    return HandlerDied(
        f"the process of {handler.name} did not start within {limit_s:g} s: make its imports faster, or raise "
        "startup_timeout"
    )


def check_options(handler: Handler) -> Handler:
    if handler.options.pool is Pool.PROCESS:
        check_importable(handler.function)
    return handler


def _check_payload(name: str, payload: Parameter) -> None:
    try:
        check_decodable(payload.type)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}(): parameter {payload.name!r}: {error.message}", field=payload.name) from None


def _asks_for_message(name: str, hint: Any) -> bool:
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if plain is Any:
        return name == "message"
    return isinstance(plain, type) and issubclass(plain, Message)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception as error:  # whatever evaluating an annotation may raise
        raise InvalidArgument(
            f"{name}(): its annotations cannot be read ({error}): a type that a handler names must be known at the "
            "top of its module"
        ) from None
