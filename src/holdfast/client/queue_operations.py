"""Operations on a queue other than claims and verdicts: inspection, operator verbs, schedules and the claim ledger."""

from collections.abc import Mapping
from typing import Any, Unpack

from msgspec.structs import asdict

from holdfast.client.options import NOT_GIVEN, PolicyOptions, ScheduledOptions, parse_schedule
from holdfast.client.payloads.encoding import encode
from holdfast.client.tracebacks import trim_class_tracebacks
from holdfast.client.transport import Transport
from holdfast.model.answers import BulkResult, Info, LedgerEntry, Page, Result, Stats
from holdfast.model.errors import InvalidArgument
from holdfast.model.ids import parse_id
from holdfast.model.message import MAX_BATCH
from holdfast.model.names import QueueRef, parse_name, parse_ref
from holdfast.model.parsing.checks import check_integer, check_rate, check_text
from holdfast.model.parsing.durations import MAX_MS, Duration, parse_duration_ms
from holdfast.model.policy import QueuePolicy
from holdfast.model.requests import Edit, Filter, make_filter, parse_listing, parse_state
from holdfast.model.schedules import ScheduleInfo
from holdfast.wire import operations, requests

FilterLike = Filter | Mapping[str, Any] | None


@trim_class_tracebacks
class QueueOperations:
    """The methods of `AsyncQueue` that neither enqueue, claim nor settle."""

    def __init__(self, transport: Transport, ref: QueueRef, url: str = "") -> None:
        self._messages = transport.messages
        self._transport = transport
        self._url = url
        self.ref = ref

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ref}{location(self._url)}>"

    # --- Inspection ------------------------------------------------------------------------------------------

    async def stats(self) -> Stats:
        """Return the exact counts of the queue.

        The counts are `ready`, `delayed`, `in_flight`, `failed`, `bytes` and `oldest_ready_age_ms`. The result also has
        `waiters`, `paused` and `draining`. A message whose lease has expired counts as in flight until it is swept.

        Raise `QueueNotFound` if the queue does not exist.

            if q.stats().ready > 10_000:
                scale_up()
        """
        return await self._transport.call(operations.STATS, self.ref, requests.Nothing())

    async def peek(self, limit: int = 1) -> list[Info]:
        """Return up to `limit` messages that would be claimed next, with their payloads, without leasing them.

        Raise `QueueNotFound` if the queue does not exist.
        """
        request = requests.PeekRequest(limit=check_integer("limit", limit, 1, MAX_BATCH))
        return await self._transport.call(operations.PEEK, self.ref, request)

    async def get(self, id: str | int, *, payload: bool = False) -> Info:
        """Return one message by its id; with `payload=True` include its payload.

        Raise `MessageNotFound` if the id is unknown, or the message was acked and its record has been removed.
        """
        request = requests.GetRequest(id=parse_id(id), payload=bool(payload))
        return await self._transport.call(operations.GET, self.ref, request)

    # --- Operator verbs --------------------------------------------------------------------------------------

    async def policy(self) -> QueuePolicy:
        """Return the policy of the queue. Raise `QueueNotFound` if the queue does not exist."""
        return await self._transport.call(operations.POLICY, self.ref, requests.Nothing())

    async def set_policy(self, **changes: Unpack[PolicyOptions]) -> QueuePolicy:
        """Change the given fields of the policy, keep the others, and return the whole policy.

        Create the queue if it does not exist. Raise `InvalidArgument`, which names the field, for an unknown field or
        a value out of range; nothing is changed then.

            q.set_policy(lease_ms=30_000, max_retries=5, limits={"write_ops_per_s": 100})
        """
        request = requests.ConfigureRequest(changes={**changes})
        return await self._transport.call(operations.SET_POLICY, self.ref, request)

    async def pause(self) -> None:
        """Stop claims: while the queue is paused they find no message, and wait if they may.

        Enqueues and verdicts are still accepted. A pause survives a restart. Raise `QueueNotFound` if the queue does
        not exist.
        """
        await self._transport.call(operations.PAUSE, self.ref, requests.PauseRequest(paused=True))

    async def resume(self) -> None:
        """Let claims find messages again after `pause`. Raise `QueueNotFound` if the queue does not exist."""
        await self._transport.call(operations.PAUSE, self.ref, requests.PauseRequest(paused=False))

    async def purge(self, state: str = "ready") -> BulkResult:
        """Remove all ready messages, delayed ones included, or all failed ones with `state="failed"`.

        Messages in flight are kept. Each removed message leaves an event in the journal. Return the number of messages
        that matched and that were changed. Raise `QueueNotFound` if the queue does not exist.
        """
        request = requests.PurgeRequest(state=parse_state(state))
        return await self._transport.call(operations.PURGE, self.ref, request)

    async def cancel(self, filter: FilterLike = None) -> BulkResult:
        """Remove the ready messages that match `filter`; without a filter, remove all of them.

        `filter` is a `Filter`, or a mapping with its fields. Return the number of messages that matched and that were
        changed. Raise `InvalidArgument` for a malformed filter.

            q.cancel({"headers": {"campaign": "spring"}})
        """
        request = requests.CancelRequest(filter=make_filter(filter))
        return await self._transport.call(operations.CANCEL, self.ref, request)

    async def reprioritise(self, priority: int, filter: FilterLike = None) -> BulkResult:
        """Set the priority, from 0 (first) to 255 (last), of the ready messages that match `filter`.

        Return the number of messages that matched and that were changed.

            q.reprioritise(0, {"headers": {"customer": "acme"}})
        """
        priority, checked = check_integer("priority", priority, 0, 255), make_filter(filter)
        request = requests.ReprioritiseRequest(priority=priority, filter=checked)
        return await self._transport.call(operations.REPRIORITISE, self.ref, request)

    async def move(
        self, to: str, *, tenant: str | None = None, filter: FilterLike = None, state: str = "ready"
    ) -> BulkResult:
        """Move matching messages to the queue `to`, with their ids, counts and state documents.

        `tenant` is the tenant of the target queue, by default that of this queue. `state` is `ready` or `failed`.
        Return the number of messages that matched and that were changed. Raise `OverQuota` if the target tenant has no
        room for them.

            q.move("mail-archive", state="failed")
        """
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
    ) -> BulkResult:
        """Make failed messages ready again, with a new retry budget and TTL.

        Their id, version and correlation id stay the same. `rate_per_s` spreads the messages over time. `dry_run` only
        counts the messages that match. `edit` replaces the payload of one message: `{"id": …, "payload": …}`. Return
        the number of messages that matched and that were redriven.

            q.redrive({"error_contains": "timeout"}, rate_per_s=50)
        """
        parsed, checked = None if edit is None else _parse_edit(edit), make_filter(filter)
        if rate_per_s is not None:
            check_rate("rate_per_s", rate_per_s)
        request = requests.RedriveRequest(filter=checked, rate_per_s=rate_per_s, dry_run=dry_run, edit=parsed)
        return await self._transport.call(operations.REDRIVE, self.ref, request)

    async def delete(self, force_after: Duration = 30) -> None:
        """Delete the queue and everything in it, in two phases.

        In the first phase enqueues and claims are refused, and messages in flight can still be settled for
        `force_after`, in seconds or as a duration. Then their leases are revoked and the whole queue is removed. Return
        as soon as the first phase has begun.

            q.delete(force_after="1m")
        """
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
        """Enqueue a payload at every tick of a cron line or an interval, or change an existing schedule.

        Give either `cron` or `every`. `timezone` is a name such as `Europe/Vienna`, by default UTC. `paused=True` keeps
        the schedule but enqueues nothing. When a schedule is changed, omitted arguments keep their values; a new
        payload replaces the previous one together with all its options. Each tick enqueues one message, even if several
        servers share the store.

        Return the schedule, with the time of its next tick. Raise `InvalidArgument`, which names the field, for a
        malformed cron line or option.

            q.schedule("nightly", cron="0 3 * * *", payload={"report": "sales"})
        """
        parsed = parse_name("schedule", name)
        change = parse_schedule(cron, every, timezone, payload, paused, options)
        request = requests.ScheduleRequest(name=parsed, **asdict(change))
        return await self._transport.call(operations.SET_SCHEDULE, self.ref, request)

    async def schedules(self) -> list[ScheduleInfo]:
        """Return the schedules of the queue, ordered by name, without their payloads."""
        return await self._transport.call(operations.SCHEDULES, self.ref, requests.Nothing())

    async def unschedule(self, name: str) -> None:
        """Delete a schedule. Raise `MessageNotFound` if the queue has no schedule of this name."""
        request = requests.ScheduleNameRequest(name=parse_name("schedule", name))
        await self._transport.call(operations.DELETE_SCHEDULE, self.ref, request)

    # --- The claim ledger ------------------------------------------------------------------------------------

    async def ledger(self, consumer: str, number: int | None = None) -> list[LedgerEntry]:
        """Return the open claims that `consumer` made with `claim(ledger=(consumer, number))`.

        With `number`, return only that claim. Use it to read the messages again that you claimed before a crash.
        """
        if number is not None:
            check_integer("number", number, 0, MAX_MS)
        request = requests.LedgerRequest(consumer=check_text("consumer", consumer), number=number)
        return await self._transport.call(operations.LEDGER, self.ref, request)

    async def ledger_ack(self, consumer: str, upto: int) -> list[Result]:
        """Ack the messages of the consumer's claims up to and including the number `upto`.

        Return one result for each message; a message whose lease is lost has the error `stale_lease`.
        """
        consumer, upto = check_text("consumer", consumer), check_integer("upto", upto, 0, MAX_MS)
        request = requests.LedgerAckRequest(consumer=consumer, upto=upto)
        return await self._transport.call(operations.LEDGER_ACK, self.ref, request)

    async def ledger_extend(self, consumer: str, lease: Duration | None = None) -> list[Result]:
        """Extend the leases of all open claims of the consumer to `lease` from now, by default the queue's lease.

        Return one result for each message whose lease was held.
        """
        lease_ms = None if lease is None else check_integer("lease", parse_duration_ms("lease", lease), 1, MAX_MS)
        request = requests.LedgerExtendRequest(consumer=check_text("consumer", consumer), lease_ms=lease_ms)
        return await self._transport.call(operations.LEDGER_EXTEND, self.ref, request)

    # This method comes last, because in the class body below it `list` is this method and not the type.
    async def list(
        self,
        state: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        filter: FilterLike = None,
        payload: bool = False,
    ) -> Page[Info]:
        """Return one page of messages, ordered by id; pass its `.cursor` to get the next page.

        `state` is `ready`, `delayed` (ready, but not yet due), `in_flight`, `failed` or `succeeded`; by default the
        page has messages of every state. With `payload=True` a page may end before `limit`, because the size of a page
        in bytes is limited. The `.cursor` of the last page is None.

            q.list(state="in_flight", filter={"held_for_ms": 600_000})    # held for more than ten minutes
        """
        parsed, checked = parse_listing(state, make_filter(filter))
        request = requests.BrowseRequest(
            state=parsed,
            filter=checked,
            cursor=None if cursor is None else str(parse_id(cursor)),
            limit=check_integer("limit", limit, 1, MAX_BATCH),
            payload=bool(payload),
        )
        return await self._transport.call(operations.BROWSE, self.ref, request)


def location(url: str) -> str:
    """Return the part of a `repr` that names the store or server; empty if it is unknown."""
    return f" of {url}" if url else ""


def _parse_edit(given: object) -> Edit:
    if not isinstance(given, Mapping) or set(given) != {"id", "payload"}:
        raise InvalidArgument('edit must be {"id": ..., "payload": ...}', field="edit")
    payload, content_type = encode(given["payload"])
    return Edit(id=parse_id(given["id"]), payload=payload, content_type=content_type)
