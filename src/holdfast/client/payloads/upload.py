"""Uploads, in which a payload goes from its source into a queue part by part.

The blocking API reads the source in the caller's thread, between two calls. A slow source, or a source that uses the
client itself, therefore delays no other caller.
"""

from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from holdfast.client.options import make_empty_draft
from holdfast.client.payloads.upload_sources import Opened, open_source, open_source_async
from holdfast.client.tracing import with_trace
from holdfast.client.transport import Interrupted, MessageCalls
from holdfast.model.answers import Enqueued
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef

if TYPE_CHECKING:
    from holdfast.client.blocking import RunCoroutine


def make_upload_draft(options: Mapping[str, Any]) -> Draft:
    """Return the draft of a message without its payload, with the trace context of the caller."""
    [draft] = with_trace([make_empty_draft(options)])
    return draft


async def upload(messages: MessageCalls, ref: QueueRef, source: Any, draft: Draft) -> Enqueued:
    """Send the payload of a source. After an interruption, start again if the source can be rewound."""
    opened = await open_source_async(source)
    try:
        going = await messages.upload(ref, draft, opened.size)
        try:
            while True:
                try:
                    async with aclosing(opened.parts_async()) as parts:  # type: ignore[type-var]  # it is a generator
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
    """Send the payload of a source from the calling thread. `run` makes each call."""
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
            with suppress(StoreUnavailable):  # the client was closed, which also abandoned the upload
                run(going.abandon())
    finally:
        opened.close()


def _rewind(opened: Opened, interrupted: Interrupted) -> None:
    if not opened.rewind():
        raise interrupted.error from None
