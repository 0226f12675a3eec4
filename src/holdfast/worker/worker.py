"""The public class `Worker`."""

import asyncio
import importlib
import os
import secrets
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from msgspec import UNSET, UnsetType

from holdfast.client.blocking import BlockingDriver, Holdfast
from holdfast.client.choosing.endpoints import Protocol, parse_protocol
from holdfast.client.choosing.transport import open_chosen_on_loop
from holdfast.client.client import AsyncHoldfast
from holdfast.clock import Clock, SystemClock
from holdfast.dice import Dice, SystemDice
from holdfast.forking import listen_for_forks
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.names import DEFAULT, QueueRef
from holdfast.model.parsing.checks import check_text
from holdfast.model.parsing.durations import Duration, parse_duration_ms
from holdfast.model.parsing.store_url import UrlKind, parse_store_url, without_secrets
from holdfast.worker.connection import client_of
from holdfast.worker.context import Hook, Hooks
from holdfast.worker.execution.function_runners import make_blocking_run
from holdfast.worker.handlers import (
    Backoff,
    Handler,
    check_auto,
    check_function,
    check_options,
    is_async,
    name_of,
    parse_options,
    read_signature,
)
from holdfast.worker.metrics import HandlerStats, publish
from holdfast.worker.runner import Runner, run_on_new_loop, stopping_on_signals

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Hook)


class Worker:
    """A process that runs handlers for the messages of queues.

    It claims messages, extends their leases while handlers run, sends verdicts, and stops without losing a message.

        worker = holdfast.Worker("http://localhost:7077")


        @worker.handler("payments", concurrency=8)
        async def charge(order: Order, message: holdfast.Message) -> None: ...


        worker.run()
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | AsyncHoldfast | Holdfast,
        *,
        owner: str | None = None,
        grace: Duration = 30,
        clock: Clock | None = None,
        dice: Dice | None = None,
        protocol: str = "auto",
        process: Literal["auto"] | None = None,
        **settings: Any,
    ) -> None:
        """Create a worker. It connects when it runs.

        `where` is a URL or a directory as for `holdfast.open`, or a client that `open` or `open_async` returned.
        `owner` is the name under which the worker claims messages; by default it is made of the host, the process and a
        random number. `grace` is the time that handlers have to finish when the worker stops. `protocol` is for the URL
        of a server's HTTP port: "http", "framed", or "auto", which uses the framed protocol if the server offers it and
        it can be reached, and HTTP otherwise. With `process="auto"`, each handler that declares a timeout and is not
        async runs in a process, which can be killed. `clock` and `dice` are for tests. `settings` are the options of
        `holdfast.open`.

        Raise `InvalidArgument` for a wrong argument.
        """
        if isinstance(where, os.PathLike):
            where = parse_store_url(where).text
        if not isinstance(where, str | AsyncHoldfast | Holdfast):
            raise InvalidArgument(
                "where must be a URL, or a client that holdfast.open or open_async returned", field="where"
            )
        if settings and not isinstance(where, str):
            raise InvalidArgument(
                f"{min(settings)!r} is an option for opening a URL, but the given client is already open",
                field=min(settings),
            )
        self._protocol = parse_protocol(protocol)
        if self._protocol is not Protocol.AUTO and not _is_http(where):
            raise InvalidArgument("protocol requires the URL of a server's HTTP port", field="protocol")
        self.where = where
        self.owner = make_owner() if owner is None else check_text("owner", owner)
        self.handlers: dict[QueueRef, Handler] = {}
        self.hooks = Hooks()
        check_auto(process)
        self._process = process
        self._grace_ms = parse_duration_ms("grace", grace)
        self._clock = clock
        self._dice = dice
        self._settings = settings
        self._runner: Runner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._test_connection: tuple[AsyncHoldfast, BlockingDriver] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._has_own_name = owner is None
        # Whether the worker was running in the process that this one was forked from.
        self._is_inherited = False
        listen_for_forks(self)

    def __repr__(self) -> str:
        where = without_secrets(self.where) if isinstance(self.where, str) else repr(self.where)
        return f"<Worker {self.owner} of {where}, handlers of {', '.join(map(str, self.handlers)) or 'no queue'}>"

    def forked(self) -> None:
        """Adapt to a fork. A running worker stays in the parent; another one may run here, under a new owner name."""
        self._is_inherited = self._is_inherited or self._runner is not None
        if self._has_own_name:
            self.owner = make_owner()

    # --- Handlers and hooks ------------------------------------------------------------------------------------

    def handler(
        self,
        queue: str = DEFAULT,
        *,
        tenant: str = DEFAULT,
        concurrency: int = 1,
        lease: Duration = "30s",
        timeout: Duration | UnsetType | None = UNSET,
        startup_timeout: Duration | None = "60s",
        max_stuck_threads: int | None = None,
        retries: int | None = None,
        backoff: Backoff | None = None,
        process: bool | Literal["auto"] | None = None,
        pool: str | None = None,
        state: bool = False,
        stream: bool = False,
    ) -> Callable[[F], F]:
        """Return a decorator that registers a function as the handler of a queue. The function itself is unchanged.

        `concurrency` is the maximum number of messages handled at once. `lease` is the lease of each message, which is
        extended while its handler runs. `timeout` is the time after which a handler is told to stop (5 minutes by
        default; None: no limit). `retries` and `backoff` replace those of the queue; `backoff` is a base duration that
        doubles with each retry, or a function of the retry's number, from 1. `state` gives the handler the message's
        state document.

        An async function runs on the event loop, any other in a thread or, with `process=True` or `pool="process"`, in
        a process, which must start within `startup_timeout`. With `process="auto"`, a function that is not async runs
        in a process if `timeout` is given, and the worker refuses to start if a process cannot import it. By default,
        `process` is that of the worker. With `stream`, an async handler reads large payloads part by part. The worker
        stops with `WorkerStuck` when more threads than `max_stuck_threads` (by default, `concurrency`) run past their
        timeout.

        Raise `InvalidArgument` for a wrong option, and for a function that cannot be a handler.
        """
        if not isinstance(queue, str):
            raise InvalidArgument('the queue is missing; write @worker.handler("payments")', field="queue")

        def register(function: F) -> F:
            check_function(function)
            options = parse_options(
                queue,
                tenant,
                is_async=is_async(function),
                concurrency=concurrency,
                lease=lease,
                timeout=timeout,
                startup_timeout=startup_timeout,
                max_stuck_threads=max_stuck_threads,
                retries=retries,
                backoff=backoff,
                process=process if process is not None else self._process or False,
                pool=pool,
                state=state,
                stream=stream,
            )
            handler = Handler(name_of(function), function, read_signature(function), options)
            self._add(check_options(handler))
            return function

        return register

    def on_start(self, hook: H) -> H:
        """Register a function to call with the worker before it claims, once connected. An error ends the worker."""
        self.hooks.add("on_start", hook)
        return hook

    def on_stop(self, hook: H) -> H:
        """Register a function to call with the worker once no message is in hand, while it is still connected."""
        self.hooks.add("on_stop", hook)
        return hook

    def before(self, hook: H) -> H:
        """Register a function to call with each message before its handler. An error counts as the handler's."""
        self.hooks.add("before", hook)
        return hook

    def after(self, hook: H) -> H:
        """Register a function to call with each message and its `Outcome`."""
        self.hooks.add("after", hook)
        return hook

    def on_error(self, hook: H) -> H:
        """Register a function to call with a message and its `Outcome` if it was retried or failed, before `after`."""
        self.hooks.add("on_error", hook)
        return hook

    def on_lost(self, hook: H) -> H:
        """Register a function to call with a message and its `Outcome` if its lease was lost, before `after`."""
        self.hooks.add("on_lost", hook)
        return hook

    def on_crash(self, hook: H) -> H:
        """Register a function to call with a `Crash` when claims from a queue fail, before they start again."""
        self.hooks.add("on_crash", hook)
        return hook

    # --- Running -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until SIGTERM, SIGINT or `stop()`. A second signal gives all messages in hand back at once.

        Raise `WorkerStuck` after an orderly stop if more handler threads than `max_stuck_threads` do not end.
        """
        self._check_not_inherited()
        if isinstance(self.where, AsyncHoldfast) and self.where._transport is not None:
            raise InvalidArgument(
                "the given client is connected on its own event loop; use `await worker.serve()` there"
            )
        run_on_new_loop(self._run())

    async def _run(self) -> None:
        with stopping_on_signals(lambda: self._runner):
            await self.serve()

    async def serve(self) -> None:
        """Run on the current event loop until `stop()`. Signals are not handled.

        If cancelled, give all messages in hand back at once. Raise `WorkerStuck` as `run` does.
        """
        await self._serve(self._make_runner())

    async def _serve(self, runner: Runner) -> None:
        running = asyncio.ensure_future(runner.serve())
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            runner.stop.request(now=True)
            await asyncio.wait({running})
            raise
        finally:
            self._runner = None

    def stop(self, *, now: bool = False) -> None:
        """Stop claiming, let handlers finish within the grace, and give the remaining messages back.

        With `now`, give all messages back without waiting. This may be called from any thread, also from a handler. It
        has no effect if the worker is not running.
        """
        if self._runner is None or self._loop is None or self._loop.is_closed() or self._is_inherited:
            return
        runner = self._runner
        self._loop.call_soon_threadsafe(lambda: runner.stop.request(now=now))

    @property
    def is_running(self) -> bool:
        """Return whether the worker is running in this process."""
        return self._runner is not None

    def stats(self) -> list[HandlerStats]:
        """Return the current statistics of each handler; none while the worker is not running."""
        return [] if self._runner is None else [consumer.stats() for consumer in self._runner.consumers]

    @property
    def client(self) -> AsyncHoldfast:
        """Return the worker's connection, for async handlers and hooks: `worker.client.queue("mail")`.

        Raise `StoreUnavailable` if the worker is not running.
        """
        return self._connection()[0]

    @property
    def blocking_client(self) -> Holdfast:
        """Return the worker's connection for blocking use, for handlers that run in threads.

        Raise `StoreUnavailable` if the worker is not running.
        """
        client, driver = self._connection()
        return Holdfast(client_of(client._connected()), driver)

    async def __aenter__(self) -> Self:
        runner = self._make_runner()
        self._serving = asyncio.ensure_future(self._serve(runner))
        await asyncio.wait({self._serving, runner.started}, return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            self._serving.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            self.stop(now=isinstance(error, asyncio.CancelledError))
            await serving

    # --- Inside ------------------------------------------------------------------------------------------------

    def _connection(self) -> tuple[AsyncHoldfast, BlockingDriver]:
        if self._test_connection is not None:
            return self._test_connection
        self._check_not_inherited()
        if self._runner is None or self._runner.client is None or self._loop is None:
            raise StoreUnavailable("the worker is not connected because it is not running")
        return self._runner.client, BlockingDriver(make_blocking_run(self._loop), lambda: None)

    def _set_test_connection(self, client: AsyncHoldfast | None, driver: BlockingDriver | None) -> None:
        """Replace the worker's own connection, for tests."""
        self._test_connection = None if client is None or driver is None else (client, driver)

    def _add(self, handler: Handler) -> None:
        ref = handler.options.ref
        if self._runner is not None:
            raise InvalidArgument(f"the worker is running; register {handler.name} before it starts")
        if (known := self.handlers.get(ref)) is not None:
            raise InvalidArgument(f"{ref} already has the handler {known.name}; a worker has one handler per queue")
        self.handlers[ref] = handler

    def _check_not_inherited(self) -> None:
        if self._is_inherited:
            raise StoreUnavailable(
                "this worker was running before the process forked, and still runs in the parent; create a new one "
                "after the fork"
            )

    def _make_runner(self) -> Runner:
        self._check_not_inherited()
        if self._runner is not None:
            raise InvalidArgument("the worker is already running")
        if not self.handlers:
            raise InvalidArgument('the worker has no handlers; write @worker.handler("queue") above a function')
        self._loop = asyncio.get_running_loop()
        publish(self)
        self._runner = Runner(
            self,
            list(self.handlers.values()),
            self.where,
            self._open,
            owner=self.owner,
            grace_ms=self._grace_ms,
            hooks=self.hooks,
            clock=self._clock or SystemClock(),
            dice=self._dice or SystemDice(),
        )
        return self._runner

    def _open(self, url: str) -> AsyncHoldfast:
        if _is_http(url):
            return open_chosen_on_loop(url, self._settings, self._protocol)
        # A store in this process uses the same clock and dice; a server has its own.
        given = {} if parse_store_url(url).is_server else {"clock": self._clock, "dice": self._dice}
        given = {name: value for name, value in given.items() if value is not None}
        # Looked up in the package at run time: this folder must not import the embedded server that `open_async` needs.
        opened: AsyncHoldfast = importlib.import_module("holdfast").open_async(url, **self._settings, **given)
        return opened


def _is_http(where: str | AsyncHoldfast | Holdfast) -> bool:
    return isinstance(where, str) and parse_store_url(where).kind is UrlKind.HTTP


def make_owner() -> str:
    """Return an owner name that is unique for this start: the host, the process id, and a random number."""
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
