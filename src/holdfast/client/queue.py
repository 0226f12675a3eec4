"""One queue, as async programs use it."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Unpack

from msgspec import Raw
from msgspec.structs import asdict

from holdfast.client.message import AsyncMessage, Held, Message, nack_verdict, note_result
from holdfast.client.options import (
    NOT_GIVEN,
    ClaimOptions,
    EnqueueOptions,
    ScheduledOptions,
    ask_of,
    change_of,
    drafts_of,
    on_close_delay_of,
)
from holdfast.client.payloads import encode, encode_json
from holdfast.client.sources import AsyncSource
from holdfast.client.tracebacks import raises_plainly
from holdfast.client.tracing import with_trace
from holdfast.client.transport import Transport
from holdfast.client.uploads import draft_of, upload
from holdfast.client.verdicts import Settled, VerdictLike, receipt_of, verdicts_of
from holdfast.forking import forked_error, generation
from holdfast.model.answers import Changed, Delivery, Info, LedgerEntry, Page, Result, Stats
from holdfast.model.checks import check_integer, check_rate, check_text
from holdfast.model.durations import MAX_MS, Duration, parse_duration_ms
from holdfast.model.errors import InvalidArgument
from holdfast.model.ids import MessageId, message_ids, parse_id
from holdfast.model.message import MAX_BATCH, Receipt, is_receipt
from holdfast.model.names import QueueRef, parse_name, parse_ref
from holdfast.model.policy import QueuePolicy
from holdfast.model.requests import Edit, Filter, Settle, Verdict, make_filter, parse_listing, parse_state
from holdfast.model.schedules import ScheduleInfo
from holdfast.wire import operations, requests

FilterLike = Filter | Mapping[str, Any] | None


@raises_plainly
class AsyncQueue:
    def __init__(self, transport: Transport, ref: QueueRef) -> None:
        self._messages = transport.messages
        self._transport = transport
        self.ref = ref

    async def enqueue(self, payload: Any, **options: Unpack[EnqueueOptions]) -> list[MessageId]:
        """Add one payload, or each of a list, all or none; answers their ids."""
        enqueued = await self._messages.enqueue(self.ref, with_trace(drafts_of(payload, options)))
        return message_ids(
            [each.snowflake for each in enqueued],
            [each.given_correlation_id for each in enqueued],
            [each.duplicate for each in enqueued],
        )

    async def upload(self, source: AsyncSource, **options: Unpack[EnqueueOptions]) -> MessageId:
        """Add one payload that need not be in memory; answers its id, one and not a list.

        `source` is a path, an open binary file (read from where it stands), or an iterable of bytes, async or not. If
        it raises, that goes on, and nothing was enqueued.
        """
        enqueued = await upload(self._messages, self.ref, source, draft_of(options))
        return MessageId(enqueued.snowflake, enqueued.given_correlation_id, enqueued.duplicate)

    async def claim(self, limit: int = 1, **options: Unpack[ClaimOptions]) -> list[AsyncMessage]:
        """Take up to `limit` ready messages under a lease; if none is ready, wait up to `wait` for one.

        With `stream=True` payloads over 1 MiB stay where they are until they are read: `message.load()`, `chunks()`,
        `write_to()`.
        """
        ask, wait_ms = ask_of(limit, options)
        on_close_delay_ms = on_close_delay_of(options)
        deliveries = await self._messages.claim(self.ref, ask, wait_ms)
        return self._in_hand(deliveries, on_close_delay_ms)

    async def exchange(
        self, verdicts: Iterable[VerdictLike], limit: int = 1, **options: Unpack[ClaimOptions]
    ) -> tuple[list[Result], list[AsyncMessage]]:
        """Settle earlier deliveries and claim up to `limit` messages, in one round trip if some are ready.

        A verdict is a message or a receipt, which is acked, or a mapping with `receipt` (a message or a receipt) and
        `verdict` (`ack`, `nack` or `release`); for a nack also with `error`, `delay_ms`, `defer` and `final`. The
        options are those of `claim`. Return one result for each verdict, and the claimed messages.

        A malformed verdict or claim is refused before anything is settled. If only the claim fails, the results are
        returned without messages: the verdicts hold, and your next claim raises the error.

            messages = []
            while True:
                results, messages = await q.exchange(messages, limit=10, wait=20)
                for message in messages:
                    handle(message.json())
        """
        ask, wait_ms = ask_of(limit, options)
        on_close_delay_ms = on_close_delay_of(options)
        judged = verdicts_of(verdicts)
        passed = [verdict for _, verdict in judged]
        results, deliveries = await self._messages.exchange(self.ref, passed, ask, wait_ms)
        for (message, verdict), result in zip(judged, results, strict=True):
            if message is not None:
                note_result(message._held, verdict, result)
        return results, self._in_hand(deliveries, on_close_delay_ms)

    async def subscribe(
        self,
        prefetch: int = 32,
        lease: Duration | None = None,
        *,
        owner: str | None = None,
        state: bool = False,
        stream: bool | None = None,
    ) -> AsyncIterator[AsyncMessage]:
        """Messages as they become ready, for ever.

        `prefetch` bounds how many may be under way to the caller over a network, or in its hands unsettled. Embedded
        there is no way to travel: each message is claimed when it is asked for, so that no lease runs while it waits
        its turn. Leaving the loop gives back what was sent ahead.
        """
        check_integer("prefetch", prefetch, 1, MAX_BATCH)
        options: ClaimOptions = {"state": state, "stream": stream}
        if lease is not None:
            options["lease"] = lease
        if owner is not None:
            options["owner"] = owner
        ask, _ = ask_of(1, options)
        deliveries = self._messages.stream(self.ref, ask, prefetch)
        begun_in = generation()
        try:
            async for delivery in deliveries:
                yield self._in_hand([delivery], None)[0]
                if generation() != begun_in:
                    raise forked_error("this subscription")
        finally:
            if isinstance(deliveries, AsyncGenerator) and generation() == begun_in:
                await deliveries.aclose()

    def _in_hand(self, deliveries: Iterable[Delivery], on_close_delay_ms: int | None) -> list[AsyncMessage]:
        transport, ref = self._transport, self.ref
        return [
            AsyncMessage(transport, Held(each, ref, each.lease_expires_at, each.state, on_close_delay_ms))
            for each in deliveries
        ]

    # --- Verdicts on many ------------------------------------------------------------------------------------

    async def ack(self, messages: Iterable[Settled]) -> list[Result]:
        """Finish messages or receipts. Return one result each, with `.ok` and the code of its own `.error`.

        `stale_lease` means that the receipt no longer holds its message; `store_unavailable` that the verdict could not
        be written and the lease stands, so that the same verdict may be sent again.
        """
        given, ack = _several(messages), Settle.ACK
        return await self._pass(given, [Verdict(settle=ack, receipt=receipt_of(each)) for each in given])

    async def nack(
        self,
        messages: Iterable[Settled],
        error: str | None = None,
        *,
        delay: Duration | None = None,
        defer: bool = False,
        final: bool = False,
    ) -> list[Result]:
        return await self._settle(
            messages, lambda receipt: nack_verdict(receipt, error, delay=delay, defer=defer, final=final)
        )

    async def extend(self, messages: Iterable[Settled], lease: Duration | None = None) -> list[Result]:
        lease_ms = None if lease is None else parse_duration_ms("lease", lease)
        return await self._settle(
            messages, lambda receipt: Verdict(settle=Settle.EXTEND, receipt=receipt, lease_ms=lease_ms)
        )

    async def release(self, messages: Iterable[Settled]) -> list[Result]:
        return await self._settle(messages, lambda receipt: Verdict(settle=Settle.RELEASE, receipt=receipt))

    async def save_state(self, message: Settled, document: Any, etag: str | None = None) -> str | None:
        """Save the state document of a message or receipt if its ETag is still `etag` (None: there is none yet);
        answers the new one. `Conflict`, `StaleLease`."""
        body = Raw(encode_json(document))
        request = requests.StateRequest(receipt=receipt_of(message), document=body, etag=etag)
        return (await self._transport.call(operations.SAVE_STATE, self.ref, request)).etag

    async def _settle(self, messages: Iterable[Settled], judge: Callable[[Receipt], Verdict]) -> list[Result]:
        given = _several(messages)
        return await self._pass(given, [judge(receipt_of(each)) for each in given])

    async def _pass(self, given: list[Settled], verdicts: list[Verdict]) -> list[Result]:
        """Send a verdict on each of the messages or receipts."""
        results = await self._messages.settle(self.ref, verdicts)
        for each, verdict, result in zip(given, verdicts, results, strict=True):
            if isinstance(each, Message):
                note_result(each._held, verdict, result)
        return results

    # --- Inspection ------------------------------------------------------------------------------------------

    async def stats(self) -> Stats:
        return await self._transport.call(operations.STATS, self.ref, requests.Nothing())

    async def peek(self, limit: int = 1) -> list[Info]:
        """What would be claimed next, with payloads; nothing is leased."""
        request = requests.PeekRequest(limit=check_integer("limit", limit, 1, MAX_BATCH))
        return await self._transport.call(operations.PEEK, self.ref, request)

    async def get(self, id: str | int, *, payload: bool = False) -> Info:
        request = requests.GetRequest(id=parse_id(id), payload=bool(payload))
        return await self._transport.call(operations.GET, self.ref, request)

    # --- Operators -------------------------------------------------------------------------------------------

    async def policy(self) -> QueuePolicy:
        return await self._transport.call(operations.POLICY, self.ref, requests.Nothing())

    async def set_policy(self, **changes: Any) -> QueuePolicy:
        """Change the fields given, create the queue if there is none; answers the whole policy."""
        request = requests.ConfigureRequest(changes=changes)
        return await self._transport.call(operations.SET_POLICY, self.ref, request)

    async def pause(self) -> None:
        await self._transport.call(operations.PAUSE, self.ref, requests.PauseRequest(paused=True))

    async def resume(self) -> None:
        await self._transport.call(operations.PAUSE, self.ref, requests.PauseRequest(paused=False))

    async def remove(self, which: Settled | int) -> None:
        """Remove one message: by id, in whatever state, and a lease on it goes stale; or by its message or receipt, if
        the lease is still held."""
        if isinstance(which, Message | Receipt) or (isinstance(which, str) and is_receipt(which)):
            await self._remove_held(which)
        else:
            request = requests.RemoveRequest(id=parse_id(which))
            await self._transport.call(operations.REMOVE, self.ref, request)

    async def _remove_held(self, which: Settled) -> None:
        [result] = await self._settle([which], lambda receipt: Verdict(settle=Settle.REMOVE, receipt=receipt))
        if not result.ok:
            raise result.failure()

    async def purge(self, state: str = "ready") -> Changed:
        """Remove everything that is ready (delayed too), or everything failed; never what is in flight."""
        request = requests.PurgeRequest(state=parse_state(state))
        return await self._transport.call(operations.PURGE, self.ref, request)

    async def cancel(self, filter: FilterLike = None) -> Changed:
        """Remove what is ready and matches."""
        request = requests.CancelRequest(filter=make_filter(filter))
        return await self._transport.call(operations.CANCEL, self.ref, request)

    async def reprioritise(self, priority: int, filter: FilterLike = None) -> Changed:
        which = make_filter(filter)
        request = requests.ReprioritiseRequest(priority=check_integer("priority", priority, 0, 255), filter=which)
        return await self._transport.call(operations.REPRIORITISE, self.ref, request)

    async def move(
        self, to: str, *, tenant: str | None = None, filter: FilterLike = None, state: str = "ready"
    ) -> Changed:
        """Move what is ready, or failed, to another queue; ids, counts and state documents go along."""
        target = parse_ref(self.ref.tenant if tenant is None else tenant, to)
        request = requests.MoveRequest(to=target, filter=make_filter(filter), state=parse_state(state))
        return await self._transport.call(operations.MOVE, self.ref, request)

    async def redrive(
        self,
        filter: FilterLike = None,
        *,
        rate_per_s: float | None = None,
        dry_run: bool = False,
        edit: Mapping[str, Any] | None = None,
    ) -> Changed:
        """Bring failed messages back with a fresh retry budget. `edit` is `{"id": ..., "payload": ...}`."""
        edited, which = None if edit is None else _edit_of(edit), make_filter(filter)
        if rate_per_s is not None:
            check_rate("rate_per_s", rate_per_s)
        request = requests.RedriveRequest(filter=which, rate_per_s=rate_per_s, dry_run=dry_run, edit=edited)
        return await self._transport.call(operations.REDRIVE, self.ref, request)

    async def delete(self, force_after: Duration = 30) -> None:
        """Delete the queue: no enqueue or claim from now on; what is in flight may be settled for `force_after`."""
        force_after_ms = check_integer("force_after", parse_duration_ms("force_after", force_after), 0, MAX_MS)
        request = requests.DeleteRequest(force_after_ms=force_after_ms)
        await self._transport.call(operations.DELETE, self.ref, request)

    # --- Schedules -------------------------------------------------------------------------------------------

    async def schedule(
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
        """Enqueue a payload at every tick of a cron line, or of an interval; or change such a schedule: what is given
        changes, the rest stays. The payload comes with all of its options."""
        parsed = parse_name("schedule", name)
        change = change_of(cron, every, timezone, payload, paused, options)
        request = requests.ScheduleRequest(name=parsed, **asdict(change))
        return await self._transport.call(operations.SET_SCHEDULE, self.ref, request)

    async def schedules(self) -> list[ScheduleInfo]:
        """By name, without payloads."""
        return await self._transport.call(operations.SCHEDULES, self.ref, requests.Nothing())

    async def unschedule(self, name: str) -> None:
        request = requests.ScheduleNameRequest(name=parse_name("schedule", name))
        await self._transport.call(operations.DELETE_SCHEDULE, self.ref, request)

    # --- The claim ledger ------------------------------------------------------------------------------------

    async def ledger(self, consumer: str, number: int | None = None) -> list[LedgerEntry]:
        """The consumer's open claims, made with `claim(ledger=(consumer, number))`; with `number`, that one alone."""
        if number is not None:
            check_integer("number", number, 0, MAX_MS)
        request = requests.LedgerRequest(consumer=check_text("consumer", consumer), number=number)
        return await self._transport.call(operations.LEDGER, self.ref, request)

    async def ledger_ack(self, consumer: str, upto: int) -> list[Result]:
        consumer, upto = check_text("consumer", consumer), check_integer("upto", upto, 0, MAX_MS)
        request = requests.LedgerAckRequest(consumer=consumer, upto=upto)
        return await self._transport.call(operations.LEDGER_ACK, self.ref, request)

    async def ledger_extend(self, consumer: str, lease: Duration | None = None) -> list[Result]:
        lease_ms = None if lease is None else check_integer("lease", parse_duration_ms("lease", lease), 1, MAX_MS)
        request = requests.LedgerExtendRequest(consumer=check_text("consumer", consumer), lease_ms=lease_ms)
        return await self._transport.call(operations.LEDGER_EXTEND, self.ref, request)

    # Last in the class: below it, `list` is this method.
    async def list(
        self,
        state: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        filter: FilterLike = None,
        payload: bool = False,
    ) -> Page[Info]:
        """Return a page of messages, ordered by id; `.cursor` asks for the next page.

        `state` is ready, delayed (ready, but not yet due), in_flight, failed or succeeded; None means all of them. With
        payloads a page may end before `limit`, by its bytes.

            q.list(state="in_flight", filter={"held_for_ms": 600_000})    # who has held a message for ten minutes?
        """
        parsed, which = parse_listing(state, make_filter(filter))
        request = requests.BrowseRequest(
            state=parsed,
            filter=which,
            cursor=None if cursor is None else str(parse_id(cursor)),
            limit=check_integer("limit", limit, 1, MAX_BATCH),
            payload=bool(payload),
        )
        return await self._transport.call(operations.BROWSE, self.ref, request)


def _several(given: Iterable[Settled]) -> list[Settled]:
    return [given] if isinstance(given, Message | Receipt | str) else list(given)


def _edit_of(given: object) -> Edit:
    if not isinstance(given, Mapping) or set(given) != {"id", "payload"}:
        raise InvalidArgument('edit is {"id": ..., "payload": ...}', field="edit")
    payload, content_type = encode(given["payload"])
    return Edit(id=parse_id(given["id"]), payload=payload, content_type=content_type)
