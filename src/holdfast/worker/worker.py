"""The worker as programs see it."""

import asyncio
import importlib
import os
import secrets
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.client.blocking import BlockingDriver, Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.framed.choosing import Protocol, open_chosen_on_loop, parse_protocol
from holdfast.clock import Clock, SystemClock
from holdfast.dice import Dice, SystemDice
from holdfast.forking import listen_for_forks
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.names import DEFAULT, QueueRef
from holdfast.model.parsing.checks import check_text
from holdfast.model.parsing.durations import Duration, parse_duration_ms
from holdfast.model.parsing.store_url import UrlKind, parse_store_url, without_secrets
from holdfast.worker.consuming.connection import client_of
from holdfast.worker.execution.function_runners import runner_on
from holdfast.worker.execution.stuck import HandlerStats
from holdfast.worker.handlers import Handler, check_function, check_options, is_async, name_of, read_signature
from holdfast.worker.hooks import Hook, Hooks
from holdfast.worker.metrics import publish
from holdfast.worker.options import Backoff, parse_options
from holdfast.worker.runner import Runner, run_on_new_loop, stopping_on_signals

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Hook)


class Worker:
    """Feeds handlers from queues: claims, heartbeats, verdicts, and a stop that loses nothing.

    `where` is a URL, or what `holdfast.open` or `open_async` gave; settings are those of `holdfast.open`.
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
        **settings: Any,
    ) -> None:
        """`protocol` is "auto", "http" or "framed", for the URL of a server's HTTP port: by default the framed protocol
        is used where the server offers it and it gets through, else HTTP."""
        if isinstance(where, os.PathLike):
            where = parse_store_url(where).text
        if not isinstance(where, str | AsyncHoldfast | Holdfast):
            raise InvalidArgument("a worker is given a URL, or what holdfast.open or open_async gave", field="where")
        if settings and not isinstance(where, str):
            raise InvalidArgument(
                f"{min(settings)!r} is for opening a URL: what was given is open", field=min(settings)
            )
        self._protocol = parse_protocol(protocol)
        if self._protocol is not Protocol.AUTO and not _is_http(where):
            raise InvalidArgument("protocol is for the URL of a server's HTTP port", field="protocol")
        self.where = where
        self.owner = make_owner() if owner is None else check_text("owner", owner)
        self.handlers: dict[QueueRef, Handler] = {}
        self.hooks = Hooks()
        self._grace_ms = parse_duration_ms("grace", grace)
        self._clock = clock
        self._dice = dice
        self._settings = settings
        self._runner: Runner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lent: tuple[AsyncHoldfast, BlockingDriver] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._has_own_name = owner is None
        # It runs in the process that this one was forked from.
        self._is_inherited = False
        listen_for_forks(self)

    def __repr__(self) -> str:
        where = without_secrets(self.where) if isinstance(self.where, str) else repr(self.where)
        return f"<Worker {self.owner} of {where}, handlers of {', '.join(map(str, self.handlers)) or 'no queue'}>"

    def forked(self) -> None:
        """A worker that is running stays the parent's. One that is not may run here, under a name of its own."""
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
        timeout: Duration | None = "5m",
        startup_timeout: Duration | None = "60s",
        max_stuck_threads: int | None = None,
        retries: int | None = None,
        backoff: Backoff | None = None,
        process: bool = False,
        pool: str | None = None,
        state: bool = False,
        stream: bool = False,
    ) -> Callable[[F], F]:
        """Let the function below handle the queue's messages. It stays the function it was."""
        if not isinstance(queue, str):
            raise InvalidArgument('a handler names its queue: write @worker.handler("payments")', field="queue")

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
                process=process,
                pool=pool,
                state=state,
                stream=stream,
            )
            handler = Handler(name_of(function), function, read_signature(function), options)
            self._add(check_options(handler))
            return function

        return register

    def on_start(self, hook: H) -> H:
        """Called with the worker once it is connected, before it claims. What it raises ends the worker."""
        self.hooks.add("on_start", hook)
        return hook

    def on_stop(self, hook: H) -> H:
        """Called with the worker when nothing is in hand any more, still connected."""
        self.hooks.add("on_stop", hook)
        return hook

    def before(self, hook: H) -> H:
        """Called with the message before its handler. What it raises counts as the handler's own error."""
        self.hooks.add("before", hook)
        return hook

    def after(self, hook: H) -> H:
        """Called with the message and its `Outcome`, whatever that is."""
        self.hooks.add("after", hook)
        return hook

    def on_error(self, hook: H) -> H:
        """Called with the message and its `Outcome` when it was retried or failed, before `after`."""
        self.hooks.add("on_error", hook)
        return hook

    def on_lost(self, hook: H) -> H:
        """Called with the message and its `Outcome` when its lease was lost, before `after`."""
        self.hooks.add("on_lost", hook)
        return hook

    # --- Running -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until SIGTERM, SIGINT or `stop()`. A second signal gives back at once what is in hand.

        Raise `WorkerStuck` after an orderly stop when more handler threads than `max_stuck_threads` do not end.
        """
        self._check_not_inherited()
        if isinstance(self.where, AsyncHoldfast) and self.where._transport is not None:
            raise InvalidArgument("what was given is connected on a loop of its own: `await worker.serve()` there")
        run_on_new_loop(self._run())

    async def _run(self) -> None:
        with stopping_on_signals(lambda: self._runner):
            await self.serve()

    async def serve(self) -> None:
        """The same on the caller's own loop, and signals are left to the caller. Cancelled, it gives back at once."""
        await self._serve(self._make_runner())

    async def _serve(self, runner: Runner) -> None:
        running = asyncio.ensure_future(runner.serve())
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            runner.stop.ask(now=True)
            await asyncio.wait({running})
            raise
        finally:
            self._runner = None

    def stop(self, *, now: bool = False) -> None:
        """Stop claiming, finish what is in hand within the grace, give the rest back; `now`: without grace.

        From any thread, a handler's too. A worker that is not running is left as it is.
        """
        if self._runner is None or self._loop is None or self._loop.is_closed() or self._is_inherited:
            return
        runner = self._runner
        self._loop.call_soon_threadsafe(lambda: runner.stop.ask(now=now))

    @property
    def is_running(self) -> bool:
        """True from the start of the worker until it has stopped."""
        return self._runner is not None

    def stats(self) -> list[HandlerStats]:
        """Return the current figures of each handler; empty while the worker is not running."""
        return [] if self._runner is None else [consumer.stats() for consumer in self._runner.consumers]

    @property
    def client(self) -> AsyncHoldfast:
        """The connection while it runs, for async handlers and hooks: `worker.client.queue("mail")`."""
        return self._connection()[0]

    @property
    def blocking_client(self) -> Holdfast:
        """The same connection for handlers that are plain functions, in their threads."""
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
        if self._lent is not None:
            return self._lent
        self._check_not_inherited()
        if self._runner is None or self._runner.client is None or self._loop is None:
            raise StoreUnavailable("the worker is not running, so it is not connected")
        return self._runner.client, BlockingDriver(runner_on(self._loop), lambda: None)

    def _lend(self, client: AsyncHoldfast | None, driver: BlockingDriver | None) -> None:
        """For tests: stand in for a connection of the worker's own."""
        self._lent = None if client is None or driver is None else (client, driver)

    def _add(self, handler: Handler) -> None:
        ref = handler.options.ref
        if self._runner is not None:
            raise InvalidArgument(f"the worker is running: register {handler.name} before it starts")
        if (known := self.handlers.get(ref)) is not None:
            raise InvalidArgument(
                f"{ref} has a handler, {known.name}: one queue is handled by one function of a worker"
            )
        self.handlers[ref] = handler

    def _check_not_inherited(self) -> None:
        if self._is_inherited:
            raise StoreUnavailable(
                "this worker was running before the process forked, and runs in the parent: make another after the fork"
            )

    def _make_runner(self) -> Runner:
        self._check_not_inherited()
        if self._runner is not None:
            raise InvalidArgument("the worker is running already")
        if not self.handlers:
            raise InvalidArgument('the worker has no handlers: write @worker.handler("queue") above a function')
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
        # A store inside this process goes by the same clock; a server has its own.
        given = {} if parse_store_url(url).is_server else {"clock": self._clock, "dice": self._dice}
        given = {name: value for name, value in given.items() if value is not None}
        # Asked of the package, which is loaded whenever this is: it may know of servers, and this folder may not.
        opened: AsyncHoldfast = importlib.import_module("holdfast").open_async(url, **self._settings, **given)
        return opened


def _is_http(where: str | AsyncHoldfast | Holdfast) -> bool:
    return isinstance(where, str) and parse_store_url(where).kind is UrlKind.HTTP


def make_owner() -> str:
    """Unlike that of any other start of any process: host, process, and dice for a reused number."""
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
