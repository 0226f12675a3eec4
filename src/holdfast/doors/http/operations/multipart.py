"""Read payloads from `multipart/form-data` requests and write them into `multipart/mixed` responses."""

import secrets
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from holdfast.doors.http.calls import HttpCall
from holdfast.doors.http.request_bodies import body_parts, check_encoding, check_length, decode, too_large
from holdfast.model.answers import Delivery, Enqueued
from holdfast.model.errors import InvalidArgument
from holdfast.model.names import QueueRef
from holdfast.service.uploads import PayloadStream
from holdfast.telemetry.log import printable
from holdfast.wire.http.bodies import MetaIn, ResultOut, encode
from holdfast.wire.http.drafts import draft_with
from holdfast.wire.http.shapes import delivery_out

if TYPE_CHECKING:  # the library defines it only for type checkers
    from python_multipart.multipart import MultipartCallbacks

PARTS_TYPE = b"multipart/mixed"
_MAX_META = 128 << 10
# The maximum size of a payload that arrives before its part `meta`, which names its queue.
_MAX_HELD = 1 << 20
# Part headers and boundaries: all bytes of a body that are neither meta nor payload.
_MAX_FRAMING = 16 << 10
_meta = msgspec.json.Decoder(MetaIn)


async def enqueue_parts(call: HttpCall) -> list[Enqueued]:
    """Enqueue the message of a multipart body, whose payload is passed to the service as it arrives.

    Raise `InvalidArgument` for another body and `PayloadTooLarge` for a body or a part that is too large.
    """
    check_encoding(call.headers)
    max_bytes = call.limits.max_payload + _MAX_META + _MAX_FRAMING
    check_length(call.headers, max_bytes)
    _, options = parse_options_header(call.headers[b"content-type"])
    boundary = options.get(b"boundary")
    if not boundary:
        raise InvalidArgument("the multipart body has no boundary in its Content-Type", field="Content-Type")
    reader = _Reader()
    upload: PayloadStream | None = None
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        async for part in body_parts(call.receive, max_bytes):
            parser.write(part)
            if upload is None:
                upload = await _open(call, reader)
            if upload is not None:
                await upload.write(reader.take_payload())
        parser.finalize()
        call.is_body_read = True
        reader.check_complete()
        assert upload is not None
        assert call.queue is not None
        return await call.enqueue_traced(call.queue, [await upload.finish()])
    except FormParserError as error:
        raise InvalidArgument(f"the body is not multipart: {printable(str(error)[:200])}", field="body") from None
    finally:
        if upload is not None:
            upload.close()


async def _open(call: HttpCall, reader: "_Reader") -> PayloadStream | None:
    """Start the upload once `meta` has arrived, which names the queue; until then return None."""
    meta = reader.meta()
    if meta is None:
        return None
    ref = call.ref(meta.tenant, meta.queue)
    # The payload is not JSON, whatever its content type says, because it was never parsed as JSON.
    draft = draft_with(meta, b"", is_json=False, correlation_id=call.given_correlation_id)
    return await call.session.upload(ref, draft)


class _Reader:
    """The parser callbacks that collect the parts `meta` and `payload`. Any other part is refused."""

    def __init__(self) -> None:
        self._parts: dict[str, bytearray] = {}
        self._has_meta = False
        self._part: bytearray | None = None
        self._name = ""
        self._header_name = b""
        self._header_value = b""
        self._headers: dict[bytes, bytes] = {}
        self._is_complete = False

    def callbacks(self) -> "MultipartCallbacks":
        """Return the callbacks for the parser."""
        return {
            "on_part_begin": self._headers.clear,
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_part_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }

    def meta(self) -> MetaIn | None:
        """Return the part `meta`, or None until it has arrived whole. Raise `InvalidArgument` for an invalid one."""
        if not self._has_meta:
            return None
        meta = decode(_meta, bytes(self._parts["meta"]))
        if meta.payload is not UNSET or meta.payload_base64 is not UNSET:
            raise InvalidArgument(
                "meta contains a payload; send the payload as a part of its own", field="meta.payload"
            )
        return meta

    def take_payload(self) -> bytes:
        """Return the bytes of the payload that have arrived since the previous call."""
        held = self._parts.get("payload", b"")
        taken = bytes(held)
        if isinstance(held, bytearray):
            held.clear()
        return taken

    def check_complete(self) -> None:
        """Raise `InvalidArgument` if the body is truncated or a part is missing."""
        if not self._is_complete:
            raise InvalidArgument("the multipart body ends before its last boundary", field="body")
        for name in ("meta", "payload"):
            if name not in self._parts:
                raise InvalidArgument(f"the multipart body has no part {name}", field=name)

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._header_name.lower()] = self._header_value
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode("latin-1")
        if name not in ("meta", "payload") or name in self._parts:
            raise InvalidArgument(
                "a part is unknown or given twice; send one part meta and one part payload", field=name[:80]
            )
        self._name = name
        self._part = self._parts[name] = bytearray()

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._part is None:
            raise InvalidArgument("a part has no headers", field="body")
        size = len(self._part) + end - start
        if self._name == "meta" and size > _MAX_META:
            raise too_large(_MAX_META)
        if self._name == "payload" and size > _MAX_HELD and not self._has_meta:
            raise InvalidArgument(f"the part meta must precede a payload of more than {_MAX_HELD} bytes", field="meta")
        self._part += data[start:end]

    def _on_part_end(self) -> None:
        self._has_meta |= self._name == "meta"

    def _on_end(self) -> None:
        self._is_complete = True


class PartStream:
    """A `multipart/mixed` response with two parts per message: its JSON document, then its payload."""

    def __init__(self, call: HttpCall, ref: QueueRef) -> None:
        self._call = call
        self._ref = ref
        self._boundary = secrets.token_hex(16).encode()

    async def start(self) -> None:
        """Send the head of the response."""
        await self._call.start_stream([(b"content-type", PARTS_TYPE + b"; boundary=" + self._boundary)])

    async def send(self, delivery: Delivery) -> None:
        """Send a delivery and its payload. Raise `CallerLeft` if the caller cannot have received them whole."""
        described = encode(delivery_out(delivery, with_payload=False))
        content_type = delivery.content_type.encode("latin-1", "replace")
        head = self._part(b"application/json", described) + self._head(content_type, delivery.bytes)
        if delivery.pieces is None:
            await self._call.stream(head + delivery.payload + b"\r\n")
            return
        await self._call.stream(head)
        async for part in await self._call.session.read_payload(self._ref, delivery):
            await self._call.stream(part)
        await self._call.stream(b"\r\n")

    async def send_results(self, results: list[ResultOut]) -> None:
        """Send the results of the verdicts that the call carried."""
        await self._call.stream(self._part(b"application/json", encode({"results": results})))

    async def end(self) -> None:
        """End the response."""
        await self._call.stream(b"--" + self._boundary + b"--\r\n")
        await self._call.end_stream()

    def _part(self, content_type: bytes, body: bytes) -> bytes:
        return self._head(content_type, len(body)) + body + b"\r\n"

    def _head(self, content_type: bytes, length: int) -> bytes:
        return b"--%b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (self._boundary, content_type, length)
