"""Read journal events in order, as NDJSON or as an Arrow stream."""

import importlib
from collections.abc import Mapping
from typing import Any

from holdfast.doors.http.calls import HttpCall
from holdfast.doors.http.connections.presence import Presence
from holdfast.model.answers import JournalEvents
from holdfast.model.errors import InvalidArgument
from holdfast.model.extras import install_command
from holdfast.model.names import QueueRef, parse_name
from holdfast.wire.arrow import ARROW_STREAM, EVENT_FIELDS, JOURNAL_COUNT, JOURNAL_NEXT
from holdfast.wire.http.admin_bodies import JournalEventOut
from holdfast.wire.http.bodies import encode
from holdfast.wire.http.routes import flag_of, integer_of
from holdfast.wire.http.shapes import event_out
from holdfast.wire.operations import JOURNAL
from holdfast.wire.requests import JournalRequest

NDJSON = b"application/x-ndjson"
ARROW = ARROW_STREAM

# The default number of events on a page.
_PAGE = 1_000


async def read(call: HttpCall) -> None:
    """Handle `GET /v1/journal`."""
    fields = call.query(*JOURNAL.routes[0].query)
    is_count = flag_of(fields, "count")
    encode_events = _as_arrow() if _wants_arrow(call.headers) and not is_count else _as_lines
    limit, wait_ms = integer_of(fields, "limit"), integer_of(fields, "wait_ms")
    request = JournalRequest(
        after=fields.get("after"),
        limit=_PAGE if limit is None else limit,
        tenant=parse_name("tenant", fields["tenant"]) if "tenant" in fields else None,
        wait_ms=wait_ms or 0,
        until=fields.get("until"),
    )
    events = await _events(call, request)
    # With `count=1` the body has no events; the headers have their number and the next position.
    content_type, body = encode_events([] if is_count else [event_out(each) for each in events])
    headers = [
        (b"content-type", content_type),
        (JOURNAL_NEXT, events.next.encode()),
        (JOURNAL_COUNT, b"%d" % len(events)),
        (b"cache-control", b"no-store"),
    ]
    await call.answer(body, headers=headers)


async def _events(call: HttpCall, request: JournalRequest) -> JournalEvents:
    work = call.session.call(JOURNAL, QueueRef(), request)
    if not request.wait_ms:
        return await work
    presence = Presence(call)
    try:
        return await presence.wait(work, lambda events: None)
    finally:
        presence.close()


def _wants_arrow(headers: Mapping[bytes, bytes]) -> bool:
    accepted = headers.get(b"accept", b"").split(b",")
    return any(each.split(b";", 1)[0].strip().lower() == ARROW for each in accepted)


def _as_lines(events: list[JournalEventOut]) -> tuple[bytes, bytes]:
    return NDJSON, b"".join([encode(each) + b"\n" for each in events])


def _as_arrow() -> "_Arrow":
    """Return the Arrow encoder. Raise `InvalidArgument` if the server lacks the extra.

    pyarrow is large and rarely used, so it is imported on first use.
    """
    try:
        return _Arrow(importlib.import_module("pyarrow"))
    except ImportError:
        raise InvalidArgument(
            f"this server lacks the arrow extra; run {install_command('arrow')} on it, or accept {NDJSON.decode()}",
            field="Accept",
        ) from None


class _Arrow:
    """The encoder of events as an Arrow stream."""

    def __init__(self, pyarrow: Any) -> None:
        self._pyarrow = pyarrow
        self._schema = pyarrow.schema(
            [
                pyarrow.field(name, getattr(pyarrow, kind)(), nullable=is_nullable)
                for name, (kind, is_nullable) in EVENT_FIELDS.items()
            ]
        )

    def __call__(self, events: list[JournalEventOut]) -> tuple[bytes, bytes]:
        columns = [
            self._pyarrow.array([getattr(event, field.name) for event in events], type=field.type)
            for field in self._schema
        ]
        sink = self._pyarrow.BufferOutputStream()
        with self._pyarrow.ipc.new_stream(sink, self._schema) as writer:
            if events:
                writer.write_batch(self._pyarrow.record_batch(columns, schema=self._schema))
        return ARROW, sink.getvalue().to_pybytes()
