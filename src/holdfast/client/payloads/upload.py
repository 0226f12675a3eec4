"""Uploads: a payload goes from its source into a queue part by part.

The blocking API reads the source in the caller's thread, between two calls, so a slow source, or one that uses the
client itself, holds up nobody else.
"""

from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from holdfast.client.options import draft_of_bytes
from holdfast.client.payloads.upload_sources import Opened, open_source, open_source_async
from holdfast.client.tracing import with_trace
from holdfast.client.transport import Interrupted, MessageCalls
from holdfast.model.answers import Enqueued
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef

if TYPE_CHECKING:
    from holdfast.client.blocking import RunCoroutine


def draft_of(options: Mapping[str, Any]) -> Draft:
    """Return the message without its payload."""
    [draft] = with_trace([draft_of_bytes(options)])
    return draft


async def upload(messages: MessageCalls, ref: QueueRef, source: Any, draft: Draft) -> Enqueued:
    """Send a source's payload; start again from its first byte after an interruption, if the source can be rewound."""
    opened = await open_source_async(source)
    try:
        going = await messages.upload(ref, draft, opened.size)
        try:
            while True:
                try:
                    async with aclosing(opened.parts_async()) as parts:  # type: ignore[type-var]  # a generator
                        async for part in parts:
                            await going.write(part)
                    return await going.enqueue()
                except Interrupted as interrupted:
                    _rewind(opened, interrupted)
        finally:
            await going.abandon()
    finally:
        opened.close()


def upload_blocking(run: "RunCoroutine", messages: MessageCalls, ref: QueueRef, source: Any, draft: Draft) -> Enqueued:
    """Send a source's payload from the calling thread; `run` makes each call."""
    opened = open_source(source)
    try:
        going = run(messages.upload(ref, draft, opened.size))
        try:
            while True:
                try:
                    for part in opened.parts():
                        run(going.write(part))
                    return run(going.enqueue())
                except Interrupted as interrupted:
                    _rewind(opened, interrupted)
        finally:
            with suppress(StoreUnavailable):  # the client was closed, which abandoned the upload too
                run(going.abandon())
    finally:
        opened.close()


def _rewind(opened: Opened, interrupted: Interrupted) -> None:
    if not opened.rewind():
        raise interrupted.error from None
