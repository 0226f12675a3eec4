"""Handlers: their function, the parameters that the worker fills, and their options."""

import inspect
import sys
import typing
from collections.abc import Callable
from enum import StrEnum
from operator import itemgetter
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import msgspec
from msgspec import UNSET

from holdfast.client.message import Message
from holdfast.client.payloads.encoding import check_decodable, decode_as
from holdfast.model.answers import Delivery
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import JSON, MAX_RETRIES
from holdfast.model.names import QueueRef, parse_ref
from holdfast.model.parsing.checks import check_integer
from holdfast.model.parsing.durations import Duration, parse_duration_ms
from holdfast.model.rules.retry import backoff_ms
from holdfast.worker.outcomes import HandlerDied, bad_payload

MAX_CONCURRENCY = 1_000
# The cap for a handler's own backoff base. The queue's cap fits only the queue's base.
BACKOFF_CAP_MS = 300_000
DEFAULT_TIMEOUT = "5m"
# The value of `process` that runs a handler in a process if it declares a timeout and is not async.
AUTO = "auto"

Backoff = Duration | Callable[[int], Duration]


class Pool(StrEnum):
    """The kind of thread or process in which a handler runs."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a handler."""

    ref: QueueRef
    pool: Pool
    concurrency: int
    lease_ms: int
    # None: no limit.
    timeout_ms: int | None
    # For handlers in processes: the time that a process has to start and import the handler. None: no limit.
    startup_timeout_ms: int | None
    # For handlers in threads: the number of threads that may run past their timeout before the worker stops.
    max_stuck_threads: int
    # None: those of the message or of the queue.
    retries: int | None
    # A base in milliseconds that doubles with each retry, or a function of the retry's number, from 1. None: the
    # queue's backoff.
    backoff: int | Callable[[int], Duration] | None
    with_state: bool
    # Whether an async handler reads large payloads part by part. In threads and processes, `message.payload` reads them
    # when it is used.
    streams: bool = False
    # Whether the worker refuses to start if a process cannot import the function.
    must_import: bool = False

    def delay_ms(self, retry: int, roll: float) -> int | None:
        """Return the delay before a retry, or None to let the queue decide. `retry` is 0 for the first."""
        if self.backoff is None:
            return None
        if callable(self.backoff):
            return parse_duration_ms("backoff", self.backoff(retry + 1))
        return backoff_ms(retry, self.backoff, BACKOFF_CAP_MS, roll)


def parse_options(
    queue: object,
    tenant: object,
    *,
    is_async: bool,
    concurrency: Any,
    lease: Any,
    timeout: Any,
    startup_timeout: Any,
    max_stuck_threads: Any,
    retries: Any,
    backoff: Any,
    process: Any,
    pool: Any,
    state: Any,
    stream: Any = False,
) -> Options:
    """Return the options of `@worker.handler(...)`. Raise `InvalidArgument` for a wrong one."""
    has_timeout = timeout is not UNSET and timeout is not None
    is_auto = pool is None and process == AUTO and has_timeout and not is_async
    lease_ms = parse_duration_ms("lease", lease)
    timeout_ms = None if timeout is None else parse_duration_ms("timeout", timeout if has_timeout else DEFAULT_TIMEOUT)
    startup_ms = None if startup_timeout is None else parse_duration_ms("startup_timeout", startup_timeout)
    for name, value in (("lease", lease_ms), ("timeout", timeout_ms), ("startup_timeout", startup_ms)):
        if value == 0:
            raise InvalidArgument(f"{name} must be longer than 0", field=name)
    slots = check_integer("concurrency", concurrency, 1, MAX_CONCURRENCY)
    max_stuck = slots if max_stuck_threads is None else max_stuck_threads
    return Options(
        ref=parse_ref(tenant, queue),
        pool=Pool.PROCESS if is_auto else _pool(pool, False if process == AUTO else process, is_async=is_async),
        concurrency=slots,
        lease_ms=lease_ms,
        timeout_ms=timeout_ms,
        startup_timeout_ms=startup_ms,
        max_stuck_threads=check_integer("max_stuck_threads", max_stuck, 0, MAX_CONCURRENCY),
        retries=None if retries is None else check_integer("retries", retries, 0, MAX_RETRIES),
        backoff=backoff if backoff is None or callable(backoff) else parse_duration_ms("backoff", backoff),
        with_state=_flag("state", state),
        streams=_flag("stream", stream),
        must_import=is_auto,
    )


def _pool(pool: Any, process: Any, *, is_async: bool) -> Pool:
    wanted = pool if pool is not None else "process" if _flag("process", process) else None
    if wanted is None:
        return Pool.LOOP if is_async else Pool.THREAD
    if wanted not in (Pool.THREAD, Pool.PROCESS) or (wanted == Pool.THREAD and process):
        raise InvalidArgument(f'pool {str(wanted)[:80]!r} must be "thread" or "process"', field="pool")
    if is_async:
        raise InvalidArgument(
            f"an async handler runs on the worker's event loop; make it a plain `def` for a {wanted} pool", field="pool"
        )
    return Pool(wanted)


def check_auto(process: object) -> None:
    """Raise `InvalidArgument` unless `process` is "auto" or None."""
    if process is not None and process != AUTO:
        raise InvalidArgument(
            f'process {str(process)[:80]!r} must be "auto" for a worker; True is an option of a handler',
            field="process",
        )


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        also = ', or "auto"' if name == "process" else ""
        raise InvalidArgument(f"{name} {str(value)[:80]!r} must be True or False{also}", field=name)
    return value


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_COLLECTORS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_RULE = (
    "the worker passes the payload in the first parameter, and the message in the one annotated holdfast.Message or "
    "named `message`"
)


class Parameter(NamedTuple):
    """A parameter of a handler that the worker fills."""

    name: str
    type: Any
    # The index of a positional-only parameter. Any other is passed by name, so that parameters between may keep their
    # defaults.
    position: int | None


class Signature(NamedTuple):
    """The parameters that the worker fills. None means that the function does not have one."""

    payload: Parameter | None
    message: Parameter | None

    def decode(self, delivery: Delivery) -> Any:
        """Return the payload, decoded to the parameter's type. Raise `BadPayload` if it does not fit."""
        if self.payload is None:
            return None
        is_json = delivery.is_json or delivery.content_type == JSON or delivery.content_type.endswith("+json")
        try:
            return decode_as(delivery.payload, self.payload.type, is_json=is_json)
        except InvalidArgument as error:
            raise bad_payload(error) from error

    def call(self, function: Callable[..., Any], payload: Any, message: Message) -> Any:
        """Call a handler with the parameters that it has, and return its result."""
        filled = [
            (each, value) for each, value in ((self.payload, payload), (self.message, message)) if each is not None
        ]
        by_position = sorted(
            ((each.position, value) for each, value in filled if each.position is not None), key=itemgetter(0)
        )
        named = {each.name: value for each, value in filled if each.position is None}
        return function(*(value for _, value in by_position), **named)


class Handler(NamedTuple):
    """A registered handler."""

    name: str
    function: Callable[..., Any]
    signature: Signature
    options: Options


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a handler is an async function, or an object with an async `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def name_of(function: Callable[..., Any]) -> str:
    """Return the qualified name of a handler's function."""
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def check_function(function: object) -> None:
    """Raise `InvalidArgument` for an object that cannot be a handler."""
    if not callable(function) or isinstance(function, type):
        raise InvalidArgument(
            f"a handler must be a function, not {str(function)[:80]}; write @worker.handler(...) above a def"
        )
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidArgument(
            f"{name_of(function)}() is a generator; a handler must return when its work is done, without yielding"
        )


def read_signature(function: Callable[..., Any]) -> Signature:
    """Return the parameters that the worker fills. Raise `InvalidArgument` for a parameter that it cannot fill."""
    name = name_of(function)
    hints = _hints(function, name)
    payload: Parameter | None = None
    message: Parameter | None = None
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind in _COLLECTORS:
            continue
        hint = hints.get(parameter.name, Any)
        found = Parameter(
            parameter.name, hint, position if parameter.kind is inspect.Parameter.POSITIONAL_ONLY else None
        )
        if message is None and _asks_for_message(parameter.name, hint):
            message = found
        elif payload is None and parameter.kind in _BY_POSITION and parameter.default is inspect.Parameter.empty:
            payload = found
            _check_payload(name, payload)
        elif parameter.default is inspect.Parameter.empty:
            raise InvalidArgument(
                f"{name}() has a parameter {parameter.name!r} that the worker cannot fill; give it a default ({_RULE})",
                field=parameter.name,
            )
    return Signature(payload, message)


def check_importable(function: Callable[..., Any]) -> str:
    """Return `module:name` of a function. Raise `InvalidArgument` if another process could not import it."""
    module, name = getattr(function, "__module__", None), name_of(function)
    if not inspect.isfunction(function) or module is None or "<" in name:
        raise InvalidArgument(
            f"{name} cannot run in its own process, which could not import it; define it with `def` at the top level "
            "of a module, or give it process=False",
            field="pool",
        )
    return f"{module}:{name}"


def is_importable_here(function: Callable[..., Any]) -> bool:
    """Return whether the name under which another process would import a function leads to it in this process.

    It does not if the name was bound again, for example in a loop that defines several handlers.
    """
    found: Any = sys.modules.get(function.__module__)
    for part in name_of(function).split("."):
        found = getattr(found, part, None)
    return found is not None and inspect.unwrap(found) is inspect.unwrap(function)


def startup_timeout_error(handler: Handler) -> HandlerDied:
    """Return the error for a handler process that did not start in time."""
    limit_s = (handler.options.startup_timeout_ms or 0) / 1_000
    return HandlerDied(
        f"the process of {handler.name} did not start within {limit_s:g} s; make its imports faster, or raise "
        "startup_timeout"
    )


def check_options(handler: Handler) -> Handler:
    """Return the handler. Raise `InvalidArgument` if its function cannot run in its pool."""
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
    except Exception as error:  # evaluating an annotation may raise any error
        raise InvalidArgument(
            f"{name}(): its annotations cannot be evaluated ({error}); define or import their types at the top level "
            "of the module"
        ) from None
