"""The blocking API: a thin shell, call for call, over the async one."""

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack

from holdfast.client.client import AsyncHoldfast, AsyncTenant
from holdfast.client.message import AsyncMessage
from holdfast.client.options import ClaimOptions, EnqueueOptions, PolicyOptions, TenantOptions
from holdfast.client.payloads.upload import draft_of, upload_blocking
from holdfast.client.payloads.upload_sources import Source
from holdfast.client.plain import PlainMessage
from holdfast.client.queue import AsyncQueue
from holdfast.client.tracebacks import raises_plainly, untrimmed
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
    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class BlockingDriver:
    """Runs coroutines of the async API to their end, in whichever way the transport needs."""

    def __init__(
        self, run: "RunCoroutine", close: Callable[[], None], is_inherited: Callable[[], bool] = lambda: False
    ) -> None:
        """`is_inherited` tells whether this process was forked after opening and has not connected anew."""
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

    # Also a docstring that the method inherits.
    call.__doc__ = inspect.getdoc(method)
    return call


@raises_plainly
class BlockingMessage(PlainMessage):
    """A claimed message of the blocking API. See `Message`."""

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


# Looked up once, because every message goes through them.
_enqueue, _claim = untrimmed(AsyncQueue.enqueue), untrimmed(AsyncQueue.claim)


@raises_plainly
class Queue:
    """A queue, made by `Holdfast.queue`. Every call returns once it is durable.

    Making this object does not create the queue: its first message does. It may be used by several threads at once.

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
        return f"<{type(self).__name__} {self.ref}>"

    @property
    def ref(self) -> QueueRef:
        """The tenant and the name of the queue."""
        return self._inner.ref

    def enqueue(self, payload: Any, **options: Unpack[EnqueueOptions]) -> list[MessageId]:
        return self._run(_enqueue(self._inner, payload, **options))

    def upload(self, source: Source, **options: Unpack[EnqueueOptions]) -> MessageId:
        inner = self._inner
        enqueued = upload_blocking(self._run, inner._messages, inner.ref, source, draft_of(options))
        return MessageId(enqueued.snowflake, enqueued.given_correlation_id, enqueued.duplicate)

    def claim(self, limit: int = 1, **options: Unpack[ClaimOptions]) -> list[BlockingMessage]:
        # `message.payload` of this API can read a large payload when it is asked for.
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
                yield BlockingMessage(self._run(_next_of(messages.__anext__())), self._driver)
        finally:
            if generation() == begun_in:  # else the parent ends it
                with suppress(StoreUnavailable):  # closed meanwhile: then there is nobody to give back to
                    self._run(_end_of(messages))

    def set_policy(self, **changes: Unpack[PolicyOptions]) -> QueuePolicy:
        return self._run(self._inner.set_policy(**changes))

    # One docstring for both APIs.
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


@raises_plainly
class Tenant:
    """A tenant, made by `Holdfast.tenant`: its limits, quotas and counts."""

    def __init__(self, inner: AsyncTenant, driver: BlockingDriver) -> None:
        self._inner = inner
        self._run = driver.run

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def name(self) -> str:
        """The name of the tenant."""
        return self._inner.name

    stats = blocking(AsyncTenant.stats)
    get = blocking(AsyncTenant.get)

    def set(self, **changes: Unpack[TenantOptions]) -> TenantConfig:
        return self._run(self._inner.set(**changes))

    set.__doc__ = AsyncTenant.set.__doc__


@raises_plainly
class Holdfast:
    """A store or a server, made by `holdfast.open`. It is open until `close`, or the end of its `with` block.

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
        return f"<{type(self).__name__} {'closed' if self._is_closed else 'open'}>"

    def queue(self, name: str = DEFAULT, *, tenant: str = DEFAULT) -> Queue:
        return Queue(self._inner.queue(name, tenant=tenant), self._driver)

    def tenant(self, name: str = DEFAULT) -> Tenant:
        return Tenant(self._inner.tenant(name), self._driver)

    queue.__doc__ = AsyncHoldfast.queue.__doc__
    tenant.__doc__ = AsyncHoldfast.tenant.__doc__

    queues = blocking(AsyncHoldfast.queues)
    tenants = blocking(AsyncHoldfast.tenants)
    journal = blocking(AsyncHoldfast.journal)
    backup = blocking(AsyncHoldfast.backup)

    def close(self) -> None:
        """Close it. Leases of claimed messages stay as they are and run out in their time. Closing twice is fine."""
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
    """Await `__anext__`: it returns an awaitable, and a driver takes coroutines."""
    message: AsyncMessage = await upcoming
    return message
