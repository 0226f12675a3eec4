"""The shortcut for the server's usual answer reads the same as the parser, and leaves everything else to it."""

import pytest

from holdfast.client.http.response import HttpReply, ResponseParser, parse_json_response
from holdfast.clock import SystemClock
from holdfast.doors.http.connections.response_heads import ResponseHeads

BODY = b'{"messages":[]}'


def usual(body: bytes = BODY, length: int | None = None) -> bytes:
    """Return an answer as the server writes it (`Exchange.answer_json`)."""
    head = ResponseHeads(SystemClock()).json_ok(0.0)
    return b"%b%d\r\nx-correlation-id: call-7\r\n\r\n%b" % (head, len(body) if length is None else length, body)


def parsed(*parts: bytes) -> ResponseParser:
    response = ResponseParser(is_stream=False)
    for part in parts:
        response.feed(part)
    return response


def test_the_servers_usual_answer_is_read_without_the_parser() -> None:
    assert parse_json_response(usual()) == HttpReply(200, {b"x-correlation-id": b"call-7"}, BODY)
    response = parsed(usual())
    assert response.reply == parse_json_response(usual())
    assert response.keeps_alive


def test_an_answer_in_two_reads_is_parsed_and_reads_the_same() -> None:
    whole = usual()
    for cut in range(1, len(whole)):
        response = parsed(whole[:cut], whole[cut:])
        assert response.reply is not None
        assert (response.reply.status, response.reply.body) == (200, BODY)
        assert response.reply.headers[b"x-correlation-id"] == b"call-7"
        assert response.keeps_alive


@pytest.mark.parametrize(
    "data",
    [
        usual().replace(b"200 OK", b"503 Service Unavailable"),
        usual().replace(b"HTTP/1.1", b"HTTP/1.0"),
        usual().replace(b"application/json", b"text/html"),
        usual().replace(b"\r\nx-corr", b"\r\nconnection: close\r\nx-corr"),
        usual().replace(b"\r\nx-corr", b"\r\ncontent-length: 15\r\nx-corr"),
        usual(length=len(BODY) + 1),
        usual() + b"HTTP/1.1 200 OK\r\n",
        b"",
    ],
)
def test_any_other_answer_is_left_to_the_parser(data: bytes) -> None:
    assert parse_json_response(data) is None


def test_bytes_behind_a_whole_answer_are_refused() -> None:
    response = parsed(usual())
    assert not response.feed(b"x")


def test_a_stream_is_never_taken_for_a_document() -> None:
    response = ResponseParser(is_stream=True)
    assert response.feed(usual())
    assert response.unread() == BODY
