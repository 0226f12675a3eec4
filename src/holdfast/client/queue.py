"""One queue in the async API."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import Any, Unpack

from msgspec import Raw

from holdfast.client.message import AsyncMessage, Message, MessageFacts, nack_verdict, note_result
from holdfast.client.options import ClaimOptions, EnqueueOptions, ask_of, drafts_of, on_close_delay_of
from holdfast.client.payloads.encoding import encode_json
from holdfast.client.payloads.upload import draft_of, upload
from holdfast.client.payloads.upload_sources import AsyncSource
from holdfast.client.queue_operations import QueueOperations
from holdfast.client.tracebacks import raises_plainly
from holdfast.client.tracing import with_trace
from holdfast.client.verdicts import Settled, VerdictLike, receipt_of, verdicts_of
from holdfast.forking import forked_error, generation
from holdfast.model.answers import Delivery, Result
from holdfast.model.ids import MessageId, message_ids, parse_id
from holdfast.model.message import MAX_BATCH, Receipt, is_receipt
from holdfast.model.parsing.checks import check_integer
from holdfast.model.parsing.durations import Duration, parse_duration_ms
from holdfast.model.requests import Settle, Verdict
from holdfast.wire import operations, requests


@raises_plainly
class AsyncQueue(QueueOperations):
    """A queue, made by `AsyncHoldfast.queue`. The methods are those of `Queue`; await each call.

    Making this object does not create the queue: its first message does.
    """

    async def enqueue(self, payload: Any, **options: Unpack[EnqueueOptions]) -> list[MessageId]:
        """Add one payload, or each payload of a list, and return their ids once they are durable.

        Bytes go as they are. Anything else goes as JSON, also text, dataclasses, msgspec structs and pydantic models.
        All payloads of one call are added, or none. The options hold for each of them; a `NewMessage` in the list has
        its own.

        - `priority`: 0 (first) to 255 (last), by default 100.
        - `delay` or `deliver_at`: when the message becomes ready, as a duration or an instant.
        - `ttl`: the message goes to the dead letters if it is not settled within this time.
        - `key`: an idempotency key. A second enqueue with it within the queue's `dedup_window_ms` returns the id of
          the first message, whose `.duplicate` is then true.
        - `group`: messages of a group are delivered in order, one batch at a time.
        - `headers`: a mapping of text to text. `correlation_id`, `content_type`: text.
        - `max_retries`: instead of the queue's.

        Raise `InvalidArgument` for a payload or an option that cannot be used, `PayloadTooLarge`, `OverQuota`,
        `RateLimited`, and `Draining` for a queue that is being deleted.

            [order_id] = q.enqueue({"order": 7}, delay="5s", key="order-7")
            q.enqueue([{"order": 8}, holdfast.NewMessage({"order": 9}, priority=1)])
        """
        enqueued = await self._messages.enqueue(self.ref, with_trace(drafts_of(payload, options)))
        return message_ids(
            [each.snowflake for each in enqueued],
            [each.given_correlation_id for each in enqueued],
            [each.duplicate for each in enqueued],
        )

    async def upload(self, source: AsyncSource, **options: Unpack[EnqueueOptions]) -> MessageId:
        """Add one message whose payload need not fit in memory, and return its id.

        `source` is a path, an open binary file, which is read from its current position, or an iterable of bytes. The
        options are those of `enqueue`. If the source raises, that error is raised and nothing is enqueued.

            q.upload("video.mp4", content_type="video/mp4")
        """
        enqueued = await upload(self._messages, self.ref, source, draft_of(options))
        return MessageId(enqueued.snowflake, enqueued.given_correlation_id, enqueued.duplicate)

    async def claim(self, limit: int = 1, **options: Unpack[ClaimOptions]) -> list[AsyncMessage]:
        """Claim up to `limit` ready messages under a lease.

        - `wait`: how long to wait for a message if none is ready, by default 0; None waits for ever.
        - `lease`: how long the messages are yours, by default the queue's `lease_ms`. Extend it while you work.
        - `owner`: a name that look-ups show as the holder.
        - `state`: also read each message's state document.
        - `on_close_delay`: the delay of the nack that `message.close()` sends for a message without a verdict.
        - `stream`: leave payloads over 1 MiB in the store; read them with `message.load()`, `chunks()` or
          `write_to()`.
        - `ledger`: `(consumer, number)` makes the claim one that can be read again by its number.

        Return an empty list if nothing became ready in time. A queue that does not exist yet has nothing ready.

            for message in q.claim(limit=10, wait=20, lease="1m"):
                with message:
                    handle(message.json())
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
                results, messages = q.exchange(messages, limit=10, wait=20)
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
        """Iterate over messages as they become ready, without end.

        Over a network, up to `prefetch` messages are on their way to you or held by you without a verdict. In an
        embedded queue each message is claimed when the loop asks for it, so that no lease runs while it waits. Leaving
        the loop gives back the messages that you have not seen. The other options are those of `claim`.

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
            AsyncMessage(transport, MessageFacts(each, ref, each.lease_expires_at, each.state, on_close_delay_ms))
            for each in deliveries
        ]

    # --- Verdicts on many ------------------------------------------------------------------------------------

    async def ack(self, messages: Iterable[Settled]) -> list[Result]:
        """Finish messages or receipts. Return one result each, with `.ok` and, where it failed, the code in `.error`.

        `stale_lease` means that the receipt no longer holds its message. `store_unavailable` means that the verdict
        could not be written and the lease still stands: send the same verdict again.

            results = q.ack(messages)
            lost = [result.id for result in results if not result.ok]
        """
        given, ack = _several(messages), Settle.ACK
        return await self._pass_verdicts(given, [Verdict(settle=ack, receipt=receipt_of(each)) for each in given])

    async def nack(
        self,
        messages: Iterable[Settled],
        error: str | None = None,
        *,
        delay: Duration | None = None,
        defer: bool = False,
        final: bool = False,
    ) -> list[Result]:
        """Give messages or receipts back as failed, with the text of the error. Return one result each, as `ack` does.

        A message is retried after `delay`, by default after the policy's backoff, and goes to the dead letters once its
        retries are used up. `defer=True` uses no retry. `final=True` sends it to the dead letters at once.
        """
        return await self._settle(
            messages, lambda receipt: nack_verdict(receipt, error, delay=delay, defer=defer, final=final)
        )

    async def extend(self, messages: Iterable[Settled], lease: Duration | None = None) -> list[Result]:
        """Let the leases of messages or receipts end `lease` from now, by default the queue's lease.

        Return one result each, as `ack` does, with the new `.lease_expires_at`. A shorter lease ends earlier than
        before.
        """
        lease_ms = None if lease is None else parse_duration_ms("lease", lease)
        return await self._settle(
            messages, lambda receipt: Verdict(settle=Settle.EXTEND, receipt=receipt, lease_ms=lease_ms)
        )

    async def release(self, messages: Iterable[Settled]) -> list[Result]:
        """Give messages or receipts back at once: they are ready again in their old place, and no retry is used.

        Return one result each, as `ack` does.
        """
        return await self._settle(messages, lambda receipt: Verdict(settle=Settle.RELEASE, receipt=receipt))

    async def save_state(self, message: Settled, document: Any, etag: str | None = None) -> str | None:
        """Save the state document of a claimed message or receipt, and return its new ETag.

        `etag` is the ETag of the document that you read; None means that there was none. Raise `Conflict` if another
        document was saved since, and `StaleLease` if the lease is lost.
        """
        body = Raw(encode_json(document))
        request = requests.StateRequest(receipt=receipt_of(message), document=body, etag=etag)
        return (await self._transport.call(operations.SAVE_STATE, self.ref, request)).etag

    async def remove(self, which: Settled | int) -> None:
        """Remove one message for good.

        `which` is an id, which removes the message in any state and makes a lease on it stale, or a claimed message or
        its receipt, which removes it only while that lease is held.

        Raise `MessageNotFound` for an unknown id, and `StaleLease` for a receipt that no longer holds its message.
        """
        if not (isinstance(which, Message | Receipt) or (isinstance(which, str) and is_receipt(which))):
            request = requests.RemoveRequest(id=parse_id(which))
            await self._transport.call(operations.REMOVE, self.ref, request)
            return
        [result] = await self._settle([which], lambda receipt: Verdict(settle=Settle.REMOVE, receipt=receipt))
        if not result.ok:
            raise result.failure()

    async def _settle(self, messages: Iterable[Settled], judge: Callable[[Receipt], Verdict]) -> list[Result]:
        given = _several(messages)
        return await self._pass_verdicts(given, [judge(receipt_of(each)) for each in given])

    async def _pass_verdicts(self, given: list[Settled], verdicts: list[Verdict]) -> list[Result]:
        """Send one verdict for each of the messages or receipts; return one result each."""
        results = await self._messages.settle(self.ref, verdicts)
        for each, verdict, result in zip(given, verdicts, results, strict=True):
            if isinstance(each, Message):
                note_result(each._held, verdict, result)
        return results


def _several(given: Iterable[Settled]) -> list[Settled]:
    return [given] if isinstance(given, Message | Receipt | str) else list(given)
