"""One queue in the async API."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import Any, Unpack

from msgspec import Raw

from holdfast.client.message import AsyncMessage, Message, MessageFacts, make_nack, record_result
from holdfast.client.options import ClaimOptions, EnqueueOptions, make_drafts, parse_claim_options, parse_on_close_delay
from holdfast.client.payloads.encoding import encode_json
from holdfast.client.payloads.upload import make_upload_draft, upload
from holdfast.client.payloads.upload_sources import AsyncSource
from holdfast.client.queue_operations import QueueOperations
from holdfast.client.tracebacks import trim_class_tracebacks
from holdfast.client.tracing import with_trace
from holdfast.client.verdicts import Settled, VerdictLike, parse_verdicts, receipt_of
from holdfast.forking import forked_error, generation
from holdfast.model.answers import Delivery, Result
from holdfast.model.ids import MessageId, message_ids, parse_id
from holdfast.model.message import MAX_BATCH, Receipt, is_receipt
from holdfast.model.parsing.checks import check_integer
from holdfast.model.parsing.durations import Duration, parse_duration_ms
from holdfast.model.requests import Settle, Verdict
from holdfast.wire import operations, requests


@trim_class_tracebacks
class AsyncQueue(QueueOperations):
    """A queue, made by `AsyncHoldfast.queue`. The methods are those of `Queue`; await each call.

    Making this object does not create the queue: its first message does. Until then, claims find nothing and most other
    methods raise `QueueNotFound`.

        q = hf.queue("payments", tenant="acme")
        await q.enqueue({"order": 7})
        for message in await q.claim(wait=20):
            async with message:
                await charge(message.json())
    """

    async def enqueue(self, payload: Any, **options: Unpack[EnqueueOptions]) -> list[MessageId]:
        """Add one payload, or each payload of a list, and return their ids once they are durable.

        Bytes are stored unchanged. Anything else is stored as JSON: text, dataclasses, msgspec structs and pydantic
        models too. Either all payloads of a call are added or none. The options apply to each of them; the options of a
        `NewMessage` in the list take precedence for that message.

        - `priority`: 0 (first) to 255 (last), by default 100.
        - `delay` or `deliver_at`: when the message becomes ready, as a duration or an instant.
        - `ttl`: the message goes to the dead letters if it is not settled within this time.
        - `key`: an idempotency key. A second enqueue with it within the queue's `dedup_window_ms` returns the id of
          the first message, whose `.duplicate` is then true.
        - `group`: messages of a group are delivered in order, one batch at a time.
        - `headers`: a mapping of text to text. `correlation_id`, `content_type`: text.
        - `max_retries`: how often the message is retried, by default the queue's `max_retries`.

        Raise `InvalidArgument` for a payload or an option that is malformed, `PayloadTooLarge`, `OverQuota`,
        `RateLimited`, and `Draining` for a queue that is being deleted.

            [order_id] = q.enqueue({"order": 7}, delay="5s", key="order-7")
            q.enqueue([{"order": 8}, holdfast.NewMessage({"order": 9}, priority=1)])
        """
        enqueued = await self._messages.enqueue(self.ref, with_trace(make_drafts(payload, options)))
        if len(enqueued) == 1:
            [one] = enqueued
            return [MessageId(one.snowflake, one.given_correlation_id, one.duplicate)]
        return message_ids(
            [each.snowflake for each in enqueued],
            [each.given_correlation_id for each in enqueued],
            [each.duplicate for each in enqueued],
        )

    async def upload(self, source: AsyncSource, **options: Unpack[EnqueueOptions]) -> MessageId:
        """Add one message whose payload need not fit in memory, and return its id.

        `source` is a path, an open binary file, which is read from its current position, or an iterable of bytes. The
        options and errors are those of `enqueue`. If the source raises an error, nothing is enqueued and the error is
        raised here.

            q.upload("video.mp4", content_type="video/mp4")
        """
        enqueued = await upload(self._messages, self.ref, source, make_upload_draft(options))
        return MessageId(enqueued.snowflake, enqueued.given_correlation_id, enqueued.duplicate)

    async def claim(self, limit: int = 1, **options: Unpack[ClaimOptions]) -> list[AsyncMessage]:
        """Claim up to `limit` ready messages under a lease.

        - `wait`: how long to wait for a message if none is ready, by default 0; None waits for ever.
        - `lease`: how long the messages are yours, by default the queue's `lease_ms`. Extend it while you work.
        - `owner`: a name that look-ups show as the holder of the lease.
        - `state`: also read each message's state document.
        - `on_close_delay`: the delay of the nack that `message.close()` sends for a message without a verdict.
        - `stream`: leave payloads over 1 MiB in the store; read them with `message.load()`, `chunks()` or
          `write_to()`.
        - `ledger`: `(consumer, number)` records the claim under a number, with which `ledger()` reads it again.

        Return an empty list if nothing became ready in time. A queue that does not exist yet has nothing ready. Raise
        `InvalidArgument` for a malformed option, `RateLimited`, and `Draining` for a queue that is being deleted.

            for message in q.claim(limit=10, wait=20, lease="1m"):
                with message:
                    handle(message.json())
        """
        ask, wait_ms = parse_claim_options(limit, options)
        on_close_delay_ms = parse_on_close_delay(options)
        deliveries = await self._messages.claim(self.ref, ask, wait_ms)
        return self._make_messages(deliveries, on_close_delay_ms)

    async def exchange(
        self, verdicts: Iterable[VerdictLike], limit: int = 1, **options: Unpack[ClaimOptions]
    ) -> tuple[list[Result], list[AsyncMessage]]:
        """Settle earlier deliveries and claim up to `limit` messages, in one round trip if some are ready.

        A verdict is a message or a receipt, which is acked, or a mapping with `receipt` (a message or a receipt) and
        `verdict` (`ack`, `nack` or `release`); for a nack also with `error`, `delay_ms`, `defer` and `final`. The
        options are those of `claim`. Return one result for each verdict, and the claimed messages.

        Raise `InvalidArgument` for a malformed verdict or claim before anything is settled. If only the claim fails,
        return the results without messages: the verdicts are settled, and your next claim raises the error.

            messages = []
            while True:
                results, messages = q.exchange(messages, limit=10, wait=20)
                for message in messages:
                    handle(message.json())
        """
        ask, wait_ms = parse_claim_options(limit, options)
        on_close_delay_ms = parse_on_close_delay(options)
        parsed = parse_verdicts(verdicts)
        results, deliveries = await self._messages.exchange(self.ref, [each for _, each in parsed], ask, wait_ms)
        for (message, verdict), result in zip(parsed, results, strict=True):
            if message is not None:
                record_result(message._held, verdict, result)
        return results, self._make_messages(deliveries, on_close_delay_ms)

    async def subscribe(
        self,
        prefetch: int = 32,
        lease: Duration | None = None,
        *,
        owner: str | None = None,
        state: bool = False,
        stream: bool | None = None,
    ) -> AsyncIterator[AsyncMessage]:
        """Iterate over messages as they become ready, without end.

        Over a network, at most `prefetch` messages are on their way to you or held by you without a verdict. In an
        embedded queue each message is claimed when the loop asks for it, so that no lease runs while it waits. When you
        leave the loop, the messages that you have not seen are given back. The other options and the errors are those
        of `claim`.

            for message in q.subscribe(prefetch=10):
                with message:
                    handle(message.json())
        """
        check_integer("prefetch", prefetch, 1, MAX_BATCH)
        options: ClaimOptions = {"state": state, "stream": stream}
        if lease is not None:
            options["lease"] = lease
        if owner is not None:
            options["owner"] = owner
        ask, _ = parse_claim_options(1, options)
        deliveries = self._messages.stream(self.ref, ask, prefetch)
        begun_in = generation()
        try:
            async for delivery in deliveries:
                yield self._make_messages([delivery], None)[0]
                if generation() != begun_in:
                    raise forked_error("this subscription")
        finally:
            if isinstance(deliveries, AsyncGenerator) and generation() == begun_in:
                await deliveries.aclose()

    def _make_messages(self, deliveries: Iterable[Delivery], on_close_delay_ms: int | None) -> list[AsyncMessage]:
        transport, ref = self._transport, self.ref
        return [
            AsyncMessage(transport, MessageFacts(each, ref, each.lease_expires_at, each.state, on_close_delay_ms))
            for each in deliveries
        ]

    # --- Verdicts on several messages ------------------------------------------------------------------------

    async def ack(self, messages: Iterable[Settled]) -> list[Result]:
        """Finish messages, given as messages or receipts: they are never delivered again.

        Return one result for each, in order, with `.ok` and, if it failed, the error code in `.error`: `stale_lease`
        means that the lease is lost; `store_unavailable` means that the verdict could not be written and the lease is
        still held, so send the same verdict again. Raise `InvalidArgument` for a malformed receipt.

            results = q.ack(messages)
            lost = [result.id for result in results if not result.ok]
        """
        given, ack = _as_list(messages), Settle.ACK
        return await self._send_verdicts(given, [Verdict(settle=ack, receipt=receipt_of(each)) for each in given])

    async def nack(
        self,
        messages: Iterable[Settled],
        error: str | None = None,
        *,
        delay: Duration | None = None,
        defer: bool = False,
        final: bool = False,
    ) -> list[Result]:
        """Give messages back as failed, with the text of the error. Return one result for each, as `ack` does.

        A message is retried after `delay`, by default after the policy's backoff, and goes to the dead letters once its
        retries are used up. `defer=True` uses no retry. `final=True` sends it to the dead letters at once.

            q.nack(messages, "the mail server is down", delay="5m")
        """
        return await self._settle(
            messages, lambda receipt: make_nack(receipt, error, delay=delay, defer=defer, final=final)
        )

    async def extend(self, messages: Iterable[Settled], lease: Duration | None = None) -> list[Result]:
        """Set the leases of messages to end `lease` from now, by default the queue's lease.

        Return one result for each, as `ack` does, with the new `.lease_expires_at`. A shorter lease ends earlier than
        before.
        """
        lease_ms = None if lease is None else parse_duration_ms("lease", lease)
        return await self._settle(
            messages, lambda receipt: Verdict(settle=Settle.EXTEND, receipt=receipt, lease_ms=lease_ms)
        )

    async def release(self, messages: Iterable[Settled]) -> list[Result]:
        """Give messages back at once: they are ready again in their previous order, and no retry is used.

        Return one result for each, as `ack` does.
        """
        return await self._settle(messages, lambda receipt: Verdict(settle=Settle.RELEASE, receipt=receipt))

    async def save_state(self, message: Settled, document: Any, etag: str | None = None) -> str | None:
        """Save the state document of a claimed message, given as message or receipt, and return its new ETag.

        `etag` is the ETag of the document that you read; None means that there was no document. Raise `Conflict` if
        another document has been saved since, and `StaleLease` if the lease is lost.
        """
        body = Raw(encode_json(document))
        request = requests.StateRequest(receipt=receipt_of(message), document=body, etag=etag)
        return (await self._transport.call(operations.SAVE_STATE, self.ref, request)).etag

    async def remove(self, which: Settled | int) -> None:
        """Remove one message for good.

        `which` is either an id or a claimed message or its receipt. An id removes the message in any state, and a lease
        on it becomes stale. A message or receipt removes it only while that lease is held.

        Raise `MessageNotFound` for an unknown id, and `StaleLease` for a receipt that no longer holds its message.
        """
        if not (isinstance(which, Message | Receipt) or (isinstance(which, str) and is_receipt(which))):
            request = requests.RemoveRequest(id=parse_id(which))
            await self._transport.call(operations.REMOVE, self.ref, request)
            return
        [result] = await self._settle([which], lambda receipt: Verdict(settle=Settle.REMOVE, receipt=receipt))
        if not result.ok:
            raise result.failure()

    async def _settle(self, messages: Iterable[Settled], make: Callable[[Receipt], Verdict]) -> list[Result]:
        given = _as_list(messages)
        return await self._send_verdicts(given, [make(receipt_of(each)) for each in given])

    async def _send_verdicts(self, given: list[Settled], verdicts: list[Verdict]) -> list[Result]:
        """Send one verdict for each message or receipt, and return one result for each."""
        results = await self._messages.settle(self.ref, verdicts)
        for each, verdict, result in zip(given, verdicts, results, strict=True):
            if isinstance(each, Message):
                record_result(each._held, verdict, result)
        return results


def _as_list(given: Iterable[Settled]) -> list[Settled]:
    return [given] if isinstance(given, Message | Receipt | str) else list(given)
