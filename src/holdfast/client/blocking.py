"""The blocking API: a thin shell, call for call, over the async one."""

import functools
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack

from holdfast.client.client import AsyncHoldfast, AsyncTenant
from holdfast.client.message import AsyncMessage
from holdfast.client.options import ClaimOptions, EnqueueOptions
from holdfast.client.plain import PlainMessage
from holdfast.client.queue import AsyncQueue
from holdfast.client.sources import Source
from holdfast.client.tracebacks import raises_plainly, untrimmed
from holdfast.client.uploads import draft_of, upload_blocking
from holdfast.client.verdicts import VerdictLike
from holdfast.forking import forked_error, generation
from holdfast.model.answers import (
    Result,
)
from holdfast.model.durations import Duration
from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import MessageId
from holdfast.model.names import DEFAULT, QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig

T = TypeVar("T")
P = ParamSpec("P")


class Run(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class Driver:
    """Runs coroutines of the async API to their end, in whichever way the transport needs."""

    def __init__(self, run: "Run", close: Callable[[], None], is_inherited: Callable[[], bool] = lambda: False) -> None:
        """`is_inherited`: whether this is a child of the process that opened it, and has not connected anew."""
        self.run = run
        self.close = close
        self.is_inherited = is_inherited


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the blocking form of a method of the async API, with its signature and its docstring."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **named: P.kwargs) -> T:
        inner = self._inner
        # By name: the inner object may be of a subclass.
        result: T = self._run(untrimmed(getattr(type(inner), name))(inner, *args, **named))
        return result

    return call


@raises_plainly
class BlockingMessage(PlainMessage):
    __slots__ = ("_inner", "_run")

    def __init__(self, inner: AsyncMessage, driver: Driver) -> None:
        self._held = inner._held
        self._inner = inner
        self._run = driver.run

    ack = blocking(AsyncMessage.ack)
    read_part = blocking(AsyncMessage.read_part)
    nack = blocking(AsyncMessage.nack)
    extend = blocking(AsyncMessage.extend)
    release = blocking(AsyncMessage.release)
    save_state = blocking(AsyncMessage.save_state)
    progress = blocking(AsyncMessage.progress)
    close = blocking(AsyncMessage.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._inner.__aexit__(kind, error, traceback))


# Found once: every message goes through them.
_enqueue, _claim = untrimmed(AsyncQueue.enqueue), untrimmed(AsyncQueue.claim)


@raises_plainly
class Queue:
    def __init__(self, inner: AsyncQueue, driver: Driver) -> None:
        self._inner = inner
        self._driver = driver
        self._run = driver.run

    @property
    def ref(self) -> QueueRef:
        return self._inner.ref

    def enqueue(self, payload: Any, **options: Unpack[EnqueueOptions]) -> list[MessageId]:
        return self._run(_enqueue(self._inner, payload, **options))

    def upload(self, source: Source, **options: Unpack[EnqueueOptions]) -> MessageId:
        """As the async one, of a path, an open binary file or an iterable of bytes; it is read in this thread."""
        inner = self._inner
        enqueued = upload_blocking(self._run, inner._messages, inner.ref, source, draft_of(options))
        return MessageId(enqueued.snowflake, enqueued.given_correlation_id, enqueued.duplicate)

    def claim(self, limit: int = 1, **options: Unpack[ClaimOptions]) -> list[BlockingMessage]:
        """As the async one; but here large payloads are left where they are unless `stream=False` says otherwise, for
        `message.payload` can read them when it is asked."""
        if options.get("stream") is None:
            options["stream"] = True
        driver = self._driver
        return [BlockingMessage(each, driver) for each in self._run(_claim(self._inner, limit, **options))]

    def exchange(
        self, verdicts: Iterable[VerdictLike], limit: int = 1, **options: Unpack[ClaimOptions]
    ) -> tuple[list[Result], list[BlockingMessage]]:
        """Settle earlier deliveries and claim up to `limit` messages, in one round trip if some are ready.

        The same as `AsyncQueue.exchange`; the messages are those of `claim`.

            results, messages = q.exchange([done, {"receipt": failed, "verdict": "nack", "error": "no such user"}])
        """
        if options.get("stream") is None:
            options["stream"] = True
        results, messages = self._run(self._inner.exchange(verdicts, limit, **options))
        return results, [BlockingMessage(each, self._driver) for each in messages]

    def subscribe(
        self,
        prefetch: int = 32,
        lease: Duration | None = None,
        *,
        owner: str | None = None,
        state: bool = False,
        stream: bool | None = None,
    ) -> Iterator[BlockingMessage]:
        stream = True if stream is None else stream
        messages = self._inner.subscribe(prefetch, lease, owner=owner, state=state, stream=stream)
        begun_in = generation()
        try:
            while True:
                if generation() != begun_in:
                    raise forked_error("this subscription")
                yield BlockingMessage(self._run(_next_of(messages.__anext__())), self._driver)
        finally:
            if generation() == begun_in:  # else the parent ends it
                with suppress(StoreUnavailable):  # closed meanwhile: then there is nobody to give back to
                    self._run(_end_of(messages))

    def set_policy(self, **changes: Any) -> QueuePolicy:
        """Change the fields given, create the queue if there is none; see `AsyncQueue.set_policy`."""
        return self._run(self._inner.set_policy(**changes))

    ack = blocking(AsyncQueue.ack)
    nack = blocking(AsyncQueue.nack)
    extend = blocking(AsyncQueue.extend)
    release = blocking(AsyncQueue.release)
    save_state = blocking(AsyncQueue.save_state)
    stats = blocking(AsyncQueue.stats)
    peek = blocking(AsyncQueue.peek)
    get = blocking(AsyncQueue.get)
    list = blocking(AsyncQueue.list)
    policy = blocking(AsyncQueue.policy)
    pause = blocking(AsyncQueue.pause)
    resume = blocking(AsyncQueue.resume)
    remove = blocking(AsyncQueue.remove)
    purge = blocking(AsyncQueue.purge)
    cancel = blocking(AsyncQueue.cancel)
    reprioritise = blocking(AsyncQueue.reprioritise)
    move = blocking(AsyncQueue.move)
    redrive = blocking(AsyncQueue.redrive)
    delete = blocking(AsyncQueue.delete)
    schedule = blocking(AsyncQueue.schedule)
    schedules = blocking(AsyncQueue.schedules)
    unschedule = blocking(AsyncQueue.unschedule)
    ledger = blocking(AsyncQueue.ledger)
    ledger_ack = blocking(AsyncQueue.ledger_ack)
    ledger_extend = blocking(AsyncQueue.ledger_extend)


@raises_plainly
class Tenant:
    def __init__(self, inner: AsyncTenant, driver: Driver) -> None:
        self._inner = inner
        self._run = driver.run

    @property
    def name(self) -> str:
        return self._inner.name

    stats = blocking(AsyncTenant.stats)
    get = blocking(AsyncTenant.get)

    def set(self, **changes: Any) -> TenantConfig:
        """Change the fields given; see `AsyncTenant.set`."""
        return self._run(self._inner.set(**changes))


@raises_plainly
class Holdfast:
    """Made by `holdfast.open`; open until `close`, or the end of its `with` block."""

    def __init__(self, inner: AsyncHoldfast, driver: Driver) -> None:
        self._inner = inner
        self._driver = driver
        self._run = driver.run
        self._is_closed = False
        driver.run(inner.__aenter__())

    def queue(self, name: str = DEFAULT, *, tenant: str = DEFAULT) -> Queue:
        return Queue(self._inner.queue(name, tenant=tenant), self._driver)

    def tenant(self, name: str = DEFAULT) -> Tenant:
        return Tenant(self._inner.tenant(name), self._driver)

    queues = blocking(AsyncHoldfast.queues)
    tenants = blocking(AsyncHoldfast.tenants)
    journal = blocking(AsyncHoldfast.journal)
    backup = blocking(AsyncHoldfast.backup)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._driver.is_inherited():
                return  # the parent closes it
            self._driver.run(self._inner.close())
            self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


async def _end_of(messages: Any) -> None:
    await messages.aclose()


async def _next_of(upcoming: Any) -> AsyncMessage:
    """`__anext__` answers an awaitable; a driver takes coroutines."""
    message: AsyncMessage = await upcoming
    return message
