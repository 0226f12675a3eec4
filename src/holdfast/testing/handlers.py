"""Tests of a worker's handlers: in-memory queues, a clock that the test moves, no threads and no sleeping."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple, Self, Unpack, cast

from holdfast.client.blocking import Holdfast
from holdfast.client.message import Message
from holdfast.client.options import EnqueueOptions
from holdfast.client.payloads.encoding import decode_json
from holdfast.client.transport import Transport
from holdfast.dice import SeededDice
from holdfast.model.answers import Enqueued, Info, Stats
from holdfast.model.errors import QueueNotFound
from holdfast.model.ids import MessageId
from holdfast.model.message import JSON, Draft
from holdfast.model.names import DEFAULT, QueueRef, parse_ref
from holdfast.model.parsing.durations import Duration, parse_duration_ms
from holdfast.runtime import LoopRuntime
from holdfast.server.embedded import open_blocking
from holdfast.testing.clock import ManualClock
from holdfast.worker.connection import WorkerConnection, client_of, wrap_transport
from holdfast.worker.consumer import Consumer
from holdfast.worker.context import ConsumerContext, Reachability, WorkerStop
from holdfast.worker.outcomes import Outcome, OutcomeKind
from holdfast.worker.worker import Worker

# Enough iterations of the event loop for everything that needs no passing of time to finish.
_TURNS = 50


class Sent(NamedTuple):
    """A message that a handler or a hook enqueued."""

    ref: QueueRef
    payload: Any
    draft: Draft


class HandlerTest:
    """A test environment that runs a worker's handlers on in-memory queues.

        async with HandlerTest(worker) as t:
            [id] = await t.enqueue("mail", {"to": "ada@example.com"})
            await t.run()
            t.assert_acked(id)

    Handlers run as in production: with decoded payloads, heartbeats, timeouts, retries and hooks. Two things differ.
    The worker's URL is not opened, and plain functions run on the event loop, also those meant for processes. Time
    passes only in `advance` and `run_for`. `enqueued` lists the messages that handlers and hooks have enqueued.
    """

    def __init__(self, worker: Worker, *, seed: int = 0) -> None:
        self.clock = ManualClock()
        self.enqueued: list[Sent] = []
        self._worker = worker
        self._seed = seed
        self._outcomes: dict[str, list[Outcome]] = defaultdict(list)
        self._consumers: dict[QueueRef, Consumer] = {}
        self._open = ExitStack()

    async def __aenter__(self) -> Self:
        dice = SeededDice(self._seed)
        self._hf: Holdfast = self._open.enter_context(
            open_blocking("memory://", {}, clock=self.clock, dice=SeededDice(self._seed))
        )
        inner = wrap_transport(self._hf._inner._connected(), self._inline)
        transport = cast("Transport", _RecordingTransport(inner, self._record_sent))
        connection = WorkerConnection(transport, client_of(transport))
        self._runtime = LoopRuntime(self.clock, self.clock)
        self._stop = WorkerStop()
        context = ConsumerContext(
            self._worker.owner,
            connection,
            self._runtime,
            dice,
            self._worker.hooks.with_last("after", self._record_outcome),
            Reachability(self.clock, "memory://"),
            self._stop,
            inline=self._hf._driver,
        )
        self._hooks = context.hooks
        self._consumers = {ref: Consumer(handler, context) for ref, handler in self._worker.handlers.items()}
        self._worker._set_test_connection(connection.client, self._hf._driver)
        await self._hooks.call("on_start", self._worker)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.request(now=True)
        for consumer in self._consumers.values():
            consumer.interrupt_all()
        await self._settle()
        for consumer in self._consumers.values():
            consumer.give_up()
            consumer.close()
        await self._settle()
        await self._hooks.notify("on_stop", self._worker)
        self._worker._set_test_connection(None, None)
        self._open.close()

    # --- Actions -----------------------------------------------------------------------------------------------

    async def enqueue(
        self, queue: str, payload: Any, *, tenant: str = DEFAULT, **options: Unpack[EnqueueOptions]
    ) -> list[MessageId]:
        """Enqueue a payload, or a list of payloads, as `Queue.enqueue` does."""
        return self._hf.queue(queue, tenant=tenant).enqueue(payload, **options)

    async def start(self) -> int:
        """Start handlers for the ready messages without waiting for them to end; return how many messages they got."""
        begun = 0
        for consumer in self._consumers.values():
            if consumer.free:
                begun += await consumer.claim_once(0)
        await self._settle()
        return begun

    async def run(self) -> int:
        """Run handlers until no message is ready at the current time and no handler is running.

        Return the number of messages claimed.
        """
        taken = 0
        while True:
            begun = await self.start()
            for consumer in self._consumers.values():
                await consumer.until_idle()
            if not begun:
                return taken
            taken += begun

    async def advance(self, duration: Duration) -> None:
        """Move the time forward by `duration`. Heartbeats, timeouts and lease expiries happen at their own times."""
        await self._settle()
        end = self.clock.now_ms() + parse_duration_ms("duration", duration)
        while (at_ms := self.clock.next_alarm_at()) is not None and at_ms <= end:
            self.clock.advance(max(at_ms - self.clock.now_ms(), 0))
            await self._settle()
        self.clock.advance(end - self.clock.now_ms())
        await self._settle()

    async def run_for(self, duration: Duration) -> int:
        """Move the time forward by `duration` and start handlers for messages as they become ready.

        Return the number of messages claimed.
        """
        begun = await self.start()
        end = self.clock.now_ms() + parse_duration_ms("duration", duration)
        while self.clock.now_ms() < end:
            moments = [end, self.clock.next_alarm_at(), *map(self._due_at, self._consumers)]
            at_ms = min(each for each in moments if each is not None)
            await self.advance(max(at_ms - self.clock.now_ms(), 0) / 1_000)
            begun += await self.start()
        return begun

    # --- Assertions --------------------------------------------------------------------------------------------

    def outcomes(self, id: str) -> list[Outcome]:
        """Return the outcome of each handling of the message, in order."""
        return list(self._outcomes.get(str(id), ()))

    def get(self, queue: str, id: str, *, tenant: str = DEFAULT) -> Info:
        """Return a stored message without claiming it, as `Queue.get` does."""
        return self._hf.queue(queue, tenant=tenant).get(id)

    def stats(self, queue: str, *, tenant: str = DEFAULT) -> Stats:
        """Return the counts of a queue, as `Queue.stats` does."""
        return self._hf.queue(queue, tenant=tenant).stats()

    def assert_acked(self, id: str) -> None:
        """Assert that the last handling of the message succeeded."""
        self._assert_last(id, OutcomeKind.SUCCEEDED)

    def assert_retried(self, id: str, error: str = "") -> None:
        """Assert that the last handling failed with an error that contains `error`, and that a retry will follow."""
        self._assert_last(id, OutcomeKind.RETRIED, error)

    def assert_failed(self, id: str, error: str = "") -> None:
        """Assert that the last handling made the message a dead letter, with an error that contains `error`."""
        self._assert_last(id, OutcomeKind.FAILED, error)

    def assert_deferred(self, id: str) -> None:
        """Assert that the last handling deferred the message."""
        self._assert_last(id, OutcomeKind.DEFERRED)

    def assert_lost(self, id: str) -> None:
        """Assert that the last handling lost its lease."""
        self._assert_last(id, OutcomeKind.LOST)

    def assert_not_handled(self, id: str) -> None:
        """Assert that no handling of the message has ended."""
        assert not self.outcomes(id), f"message {id} was handled: {self._describe(id)}"

    def assert_enqueued(
        self, queue: str, payload: Any = ..., *, tenant: str = DEFAULT, count: int | None = None
    ) -> list[Sent]:
        """Assert that handlers or hooks enqueued messages through `worker.client`, and return those that match.

        Without a payload every message in the queue matches. At least one message must match, or exactly `count`.
        """
        ref = parse_ref(tenant, queue)
        there = [each for each in self.enqueued if each.ref == ref]
        found = [each for each in there if payload is ... or each.payload == payload]
        wanted = "" if payload is ... else f" with {payload!r}"
        expected = "a message" if count is None else f"{count} messages"
        assert len(found) == count if count is not None else found, (
            f"expected {expected} in {ref}{wanted}; enqueued there: {[each.payload for each in there]!r}"
        )
        return found

    # --- Internals ---------------------------------------------------------------------------------------------

    def _assert_last(self, id: str, kind: OutcomeKind, error: str = "") -> None:
        outcomes = self.outcomes(id)
        assert outcomes, f"message {id} was not handled: call `await t.run()`, and `t.advance` if it is not due yet"
        last = outcomes[-1]
        assert last.kind is kind, f"expected message {id} {kind}; it was {self._describe(id)}"
        assert error in (last.error or ""), f"expected message {id} {kind} with {error!r}; it was {self._describe(id)}"

    def _describe(self, id: str) -> str:
        return ", then ".join(f"{each.kind}{f' ({each.error})' if each.error else ''}" for each in self.outcomes(id))

    def _record_outcome(self, message: Message, outcome: Outcome) -> None:
        self._outcomes[str(message.id)].append(outcome)

    def _record_sent(self, ref: QueueRef, draft: Draft) -> None:
        is_json = draft.content_type == JSON if draft.is_json is None else draft.is_json
        self.enqueued.append(Sent(ref, decode_json(draft.payload, None) if is_json else draft.payload, draft))

    def _due_at(self, ref: QueueRef) -> int | None:
        """Return the time at which the next delayed message of the queue is due, or None if there is none."""
        try:
            ready = self._hf.queue(ref.queue, tenant=ref.tenant).list("ready", limit=1_000)
        except QueueNotFound:
            return None
        now_ms = self.clock.now_ms()
        return min((each.visible_at for each in ready if each.visible_at > now_ms), default=None)

    async def _inline(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self._hf._driver.run(call)

    async def _settle(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)


class _RecordingTransport:
    """A transport that calls `record` for each message enqueued through it."""

    def __init__(self, inner: Transport, record: Callable[[QueueRef, Draft], None]) -> None:
        self.messages = _RecordingMessages(inner.messages, record)
        self.call = inner.call

    async def close(self) -> None:
        """Do nothing: the inner transport is closed by the client that opened it."""


class _RecordingMessages:
    def __init__(self, inner: Any, record: Callable[[QueueRef, Draft], None]) -> None:
        self._inner = inner
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        enqueued: list[Enqueued] = await self._inner.enqueue(ref, drafts)
        for draft in drafts:
            self._record(ref, draft)
        return enqueued

    async def upload(self, ref: QueueRef, draft: Draft, size: int | None = None) -> "_RecordingUpload":
        return _RecordingUpload(self, ref, await self._inner.upload(ref, draft, size))


class _RecordingUpload:
    def __init__(self, messages: _RecordingMessages, ref: QueueRef, inner: Any) -> None:
        self._messages = messages
        self._ref = ref
        self._inner = inner
        self.write = inner.write
        self.abandon = inner.abandon

    async def enqueue(self) -> Enqueued:
        [enqueued] = await self._messages.enqueue(self._ref, [await self._inner.finish()])
        return enqueued
