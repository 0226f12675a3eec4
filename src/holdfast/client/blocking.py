"""The blocking API: each call runs the same call of the async API to its end."""

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack

from holdfast.client.client import AsyncHoldfast, AsyncTenant
from holdfast.client.message import AsyncMessage
from holdfast.client.options import ClaimOptions, EnqueueOptions, PolicyOptions, TenantOptions
from holdfast.client.payloads.upload import make_upload_draft, upload_blocking
from holdfast.client.payloads.upload_sources import Source
from holdfast.client.queue import AsyncQueue
from holdfast.client.queue_operations import location
from holdfast.client.sync_message import SyncMessage
from holdfast.client.tracebacks import trim_class_tracebacks, untrimmed
from holdfast.client.verdicts import VerdictLike
from holdfast.forking import forked_error, generation
from holdfast.model.answers import Result
from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import MessageId
from holdfast.model.names import DEFAULT, QueueRef
from holdfast.model.parsing.durations import Duration
from holdfast.model.policy import QueuePolicy, TenantConfig

T = TypeVar("T")
P = ParamSpec("P")


class RunCoroutine(Protocol):
    """A function that runs a coroutine of the async API to its end and returns its result."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class BlockingDriver:
    """The functions with which the blocking API runs coroutines of the async API; each transport has its own."""

    def __init__(
        self, run: "RunCoroutine", close: Callable[[], None], is_inherited: Callable[[], bool] = lambda: False
    ) -> None:
        """Set the functions of one connection.

        `run` runs a coroutine to its end. `close` releases what `run` uses. `is_inherited` returns whether this process
        was forked after the connection was opened, and has not connected again.
        """
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

    # `functools.wraps` does not copy a docstring that the method inherits.
    call.__doc__ = inspect.getdoc(method)
    return call


@trim_class_tracebacks
class BlockingMessage(SyncMessage):
    """A claimed message of the blocking API. See `Message`.

    for message in q.claim(limit=10, wait=20):
        with message:
            handle(message.json())
    """

    __slots__ = ("_inner", "_run")

    def __init__(self, inner: AsyncMessage, driver: BlockingDriver) -> None:
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


# Looked up once, because they are called for every message.
_enqueue, _claim = untrimmed(AsyncQueue.enqueue), untrimmed(AsyncQueue.claim)


@trim_class_tracebacks
class Queue:
    """A queue, made by `Holdfast.queue`. Every call returns once its effect is durable.

    Making this object does not create the queue: its first message does. Until then, claims find nothing and most other
    methods raise `QueueNotFound`. Several threads can use the object at once.

        q = hf.queue("payments", tenant="acme")
        q.enqueue({"order": 7})
        for message in q.claim(wait=20):
            with message:
                charge(message.json())
    """

    def __init__(self, inner: AsyncQueue, driver: BlockingDriver) -> None:
        self._inner = inner
        self._driver = driver
        self._run = driver.run

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ref}{location(self._inner._url)}>"

    @property
    def ref(self) -> QueueRef:
        """The names of the tenant and of the queue; its text is `tenant/queue`."""
        return self._inner.ref

    def enqueue(self, payload: Any, **options: Unpack[EnqueueOptions]) -> list[MessageId]:
        return self._run(_enqueue(self._inner, payload, **options))

    def upload(self, source: Source, **options: Unpack[EnqueueOptions]) -> MessageId:
        inner = self._inner
        enqueued = upload_blocking(self._run, inner._messages, inner.ref, source, make_upload_draft(options))
        return MessageId(enqueued.snowflake, enqueued.given_correlation_id, enqueued.duplicate)

    def claim(self, limit: int = 1, **options: Unpack[ClaimOptions]) -> list[BlockingMessage]:
        # `message.payload` of the blocking API reads a large payload from the store at its first use.
        if options.get("stream") is None:
            options["stream"] = True
        driver = self._driver
        return [BlockingMessage(each, driver) for each in self._run(_claim(self._inner, limit, **options))]

    def exchange(
        self, verdicts: Iterable[VerdictLike], limit: int = 1, **options: Unpack[ClaimOptions]
    ) -> tuple[list[Result], list[BlockingMessage]]:
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
                yield BlockingMessage(self._run(_await_next(messages.__anext__())), self._driver)
        finally:
            if generation() == begun_in:  # in a forked child, the subscription is still the parent's to end
                with suppress(StoreUnavailable):  # the client was closed, so no call can be made
                    self._run(_close_generator(messages))

    def set_policy(self, **changes: Unpack[PolicyOptions]) -> QueuePolicy:
        return self._run(self._inner.set_policy(**changes))

    # Both APIs share one docstring.
    enqueue.__doc__ = AsyncQueue.enqueue.__doc__
    upload.__doc__ = AsyncQueue.upload.__doc__
    claim.__doc__ = AsyncQueue.claim.__doc__
    exchange.__doc__ = AsyncQueue.exchange.__doc__
    subscribe.__doc__ = AsyncQueue.subscribe.__doc__
    set_policy.__doc__ = AsyncQueue.set_policy.__doc__

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


@trim_class_tracebacks
class Tenant:
    """A tenant, made by `Holdfast.tenant`: its limits, quotas and counts.

    hf.tenant("acme").set(weight=2, quotas={"max_messages": 100_000})
    """

    def __init__(self, inner: AsyncTenant, driver: BlockingDriver) -> None:
        self._inner = inner
        self._run = driver.run

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{location(self._inner._url)}>"

    @property
    def name(self) -> str:
        """The name of the tenant."""
        return self._inner.name

    stats = blocking(AsyncTenant.stats)
    get = blocking(AsyncTenant.get)

    def set(self, **changes: Unpack[TenantOptions]) -> TenantConfig:
        return self._run(self._inner.set(**changes))

    set.__doc__ = AsyncTenant.set.__doc__


@trim_class_tracebacks
class Holdfast:
    """A connection to a store or a server, made by `holdfast.open`. It is open until `close` or the end of its block.

    with holdfast.open("./data") as hf:
        hf.queue("mail").enqueue({"to": "ada"})
    """

    def __init__(self, inner: AsyncHoldfast, driver: BlockingDriver) -> None:
        self._inner = inner
        self._driver = driver
        self._run = driver.run
        self._is_closed = False
        driver.run(inner.__aenter__())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{location(self._inner._url)}{', closed' if self._is_closed else ''}>"

    def queue(self, name: str = DEFAULT, *, tenant: str = DEFAULT) -> Queue:
        return Queue(self._inner.queue(name, tenant=tenant), self._driver)

    def tenant(self, name: str = DEFAULT) -> Tenant:
        return Tenant(self._inner.tenant(name), self._driver)

    queue.__doc__ = AsyncHoldfast.queue.__doc__
    tenant.__doc__ = AsyncHoldfast.tenant.__doc__

    queues = blocking(AsyncHoldfast.queues)
    tenants = blocking(AsyncHoldfast.tenants)
    names = blocking(AsyncHoldfast.names)
    hot_queues = blocking(AsyncHoldfast.hot_queues)
    journal = blocking(AsyncHoldfast.journal)
    backup = blocking(AsyncHoldfast.backup)

    def close(self) -> None:
        """Disconnect. The leases of claimed messages are kept and expire at their time. Safe to call again."""
        if not self._is_closed:
            self._is_closed = True
            if self._driver.is_inherited():
                return  # the connection belongs to the parent process, which closes it
            self._driver.run(self._inner.close())
            self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


async def _close_generator(messages: Any) -> None:
    """Await `aclose`, because a driver runs coroutines and `aclose` returns another awaitable."""
    await messages.aclose()


async def _await_next(upcoming: Any) -> AsyncMessage:
    """Await `__anext__`, because a driver runs coroutines and `__anext__` returns another awaitable."""
    message: AsyncMessage = await upcoming
    return message
