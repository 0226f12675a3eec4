"""The blocking API: a thin shell, call for call, over the async one."""

from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, Unpack

from holdfast.client.client import AsyncHoldfast, AsyncTenant
from holdfast.client.message import AsyncMessage
from holdfast.client.options import NOT_GIVEN, ClaimOptions, EnqueueOptions, ScheduledOptions
from holdfast.client.plain import PlainMessage
from holdfast.client.queue import AsyncQueue, FilterLike, Settled
from holdfast.client.sources import Source
from holdfast.client.tracebacks import raises_plainly
from holdfast.client.uploads import draft_of, upload_blocking
from holdfast.forking import forked_error, generation
from holdfast.model.answers import (
    Changed,
    Events,
    Info,
    LedgerEntry,
    Page,
    QueueSummary,
    Result,
    Stats,
    TenantSummary,
)
from holdfast.model.durations import Duration
from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import MessageId
from holdfast.model.names import DEFAULT, QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.schedules import ScheduleInfo

T = TypeVar("T")


class Run(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class Driver:
    """Runs coroutines of the async API to their end, in whichever way the transport needs."""

    def __init__(self, run: "Run", close: Callable[[], None], is_inherited: Callable[[], bool] = lambda: False) -> None:
        """`is_inherited`: whether this is a child of the process that opened it, and has not connected anew."""
        self.run = run
        self.close = close
        self.is_inherited = is_inherited


@raises_plainly
class BlockingMessage(PlainMessage):
    __slots__ = ("_inner", "_run")

    def __init__(self, inner: AsyncMessage, driver: Driver) -> None:
        super().__init__(inner._held)
        self._inner = inner
        self._run = driver.run

    def read_part(self, offset: int, limit: int) -> bytes:
        return self._run(self._inner.read_part(offset, limit))

    def ack(self) -> None:
        self._run(self._inner.ack())

    def nack(
        self, error: str | None = None, *, delay: Duration | None = None, defer: bool = False, final: bool = False
    ) -> Result:
        return self._run(self._inner.nack(error, delay=delay, defer=defer, final=final))

    def extend(self, lease: Duration | None = None) -> int:
        return self._run(self._inner.extend(lease))

    def release(self) -> None:
        self._run(self._inner.release())

    def save_state(self, document: Any, etag: str | None = None) -> str | None:
        return self._run(self._inner.save_state(document, etag))

    def progress(self, percent: float, text: str = "") -> None:
        self._run(self._inner.progress(percent, text))

    def close(self) -> None:
        self._run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._inner.__aexit__(kind, error, traceback))


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
        return self._run(self._inner.enqueue(payload, **options))

    def upload(self, source: Source, **options: Unpack[EnqueueOptions]) -> MessageId:
        """As the async one, of a path, an open binary file or an iterable of bytes; it is read in this thread."""
        inner = self._inner
        enqueued = upload_blocking(self._run, inner._messages, inner.ref, source, draft_of(options))
        return MessageId(enqueued.snowflake, enqueued.given_correlation_id, enqueued.duplicate)

    def claim(self, limit: int = 1, **options: Unpack[ClaimOptions]) -> list[BlockingMessage]:
        """As the async one; but here large payloads are left where they are unless `stream=False` says otherwise, for
        `message.payload` can read them when it is asked."""
        options["stream"] = _streams(options.get("stream"))
        driver = self._driver
        return [BlockingMessage(each, driver) for each in self._run(self._inner.claim(limit, **options))]

    def subscribe(
        self,
        prefetch: int = 32,
        lease: Duration | None = None,
        *,
        owner: str | None = None,
        state: bool = False,
        stream: bool | None = None,
    ) -> Iterator[BlockingMessage]:
        messages = self._inner.subscribe(prefetch, lease, owner=owner, state=state, stream=_streams(stream))
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

    def ack(self, messages: Iterable[Settled]) -> list[Result]:
        return self._run(self._inner.ack(messages))

    def nack(
        self,
        messages: Iterable[Settled],
        error: str | None = None,
        *,
        delay: Duration | None = None,
        defer: bool = False,
        final: bool = False,
    ) -> list[Result]:
        return self._run(self._inner.nack(messages, error, delay=delay, defer=defer, final=final))

    def extend(self, messages: Iterable[Settled], lease: Duration | None = None) -> list[Result]:
        return self._run(self._inner.extend(messages, lease))

    def release(self, messages: Iterable[Settled]) -> list[Result]:
        return self._run(self._inner.release(messages))

    def save_state(self, message: Settled, document: Any, etag: str | None = None) -> str | None:
        return self._run(self._inner.save_state(message, document, etag))

    def stats(self) -> Stats:
        return self._run(self._inner.stats())

    def peek(self, limit: int = 1) -> list[Info]:
        return self._run(self._inner.peek(limit))

    def get(self, id: str | int, *, payload: bool = False) -> Info:
        return self._run(self._inner.get(id, payload=payload))

    def policy(self) -> QueuePolicy:
        return self._run(self._inner.policy())

    def set_policy(self, **changes: Any) -> QueuePolicy:
        return self._run(self._inner.set_policy(**changes))

    def pause(self) -> None:
        self._run(self._inner.pause())

    def resume(self) -> None:
        self._run(self._inner.resume())

    def remove(self, which: Settled | int) -> None:
        self._run(self._inner.remove(which))

    def purge(self, state: str = "ready") -> Changed:
        return self._run(self._inner.purge(state))

    def cancel(self, filter: FilterLike = None) -> Changed:
        return self._run(self._inner.cancel(filter))

    def reprioritise(self, priority: int, filter: FilterLike = None) -> Changed:
        return self._run(self._inner.reprioritise(priority, filter))

    def move(self, to: str, *, tenant: str | None = None, filter: FilterLike = None, state: str = "ready") -> Changed:
        return self._run(self._inner.move(to, tenant=tenant, filter=filter, state=state))

    def redrive(
        self,
        filter: FilterLike = None,
        *,
        rate_per_s: float | None = None,
        dry_run: bool = False,
        edit: dict[str, Any] | None = None,
    ) -> Changed:
        return self._run(self._inner.redrive(filter, rate_per_s=rate_per_s, dry_run=dry_run, edit=edit))

    def delete(self, force_after: Duration = 30) -> None:
        self._run(self._inner.delete(force_after))

    def schedule(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str | None = None,
        payload: Any = NOT_GIVEN,
        paused: bool | None = None,
        **options: Unpack[ScheduledOptions],
    ) -> ScheduleInfo:
        inner = self._inner.schedule(
            name, cron=cron, every=every, timezone=timezone, payload=payload, paused=paused, **options
        )
        return self._run(inner)

    def schedules(self) -> list[ScheduleInfo]:
        return self._run(self._inner.schedules())

    def unschedule(self, name: str) -> None:
        self._run(self._inner.unschedule(name))

    def ledger(self, consumer: str, number: int | None = None) -> list[LedgerEntry]:
        return self._run(self._inner.ledger(consumer, number))

    def ledger_ack(self, consumer: str, upto: int) -> list[Result]:
        return self._run(self._inner.ledger_ack(consumer, upto))

    def ledger_extend(self, consumer: str, lease: Duration | None = None) -> list[Result]:
        return self._run(self._inner.ledger_extend(consumer, lease))

    # Last in the class: below it, `list` is this method.
    def list(
        self,
        state: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        filter: FilterLike = None,
        payload: bool = False,
    ) -> Page[Info]:
        return self._run(self._inner.list(state, limit, cursor, filter=filter, payload=payload))


def _streams(stream: bool | None) -> bool:
    return True if stream is None else stream


@raises_plainly
class Tenant:
    def __init__(self, inner: AsyncTenant, driver: Driver) -> None:
        self._inner = inner
        self._run = driver.run

    @property
    def name(self) -> str:
        return self._inner.name

    def stats(self) -> Stats:
        return self._run(self._inner.stats())

    def get(self) -> TenantConfig:
        return self._run(self._inner.get())

    def set(self, **changes: Any) -> TenantConfig:
        return self._run(self._inner.set(**changes))


@raises_plainly
class Holdfast:
    """Made by `holdfast.open`; open until `close`, or the end of its `with` block."""

    def __init__(self, inner: AsyncHoldfast, driver: Driver) -> None:
        self._inner = inner
        self._driver = driver
        self._is_closed = False
        driver.run(inner.__aenter__())

    def queue(self, name: str = DEFAULT, *, tenant: str = DEFAULT) -> Queue:
        return Queue(self._inner.queue(name, tenant=tenant), self._driver)

    def tenant(self, name: str = DEFAULT) -> Tenant:
        return Tenant(self._inner.tenant(name), self._driver)

    def queues(self, tenant: str = DEFAULT) -> list[QueueSummary]:
        return self._driver.run(self._inner.queues(tenant))

    def tenants(self) -> list[TenantSummary]:
        return self._driver.run(self._inner.tenants())

    def journal(self, after: str | None = None, limit: int = 1_000, *, tenant: str | None = None) -> Events:
        return self._driver.run(self._inner.journal(after, limit, tenant=tenant))

    def backup(self, target: str) -> None:
        self._driver.run(self._inner.backup(target))

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
