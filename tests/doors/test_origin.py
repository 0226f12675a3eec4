"""A page of another site cannot use a browser on this machine to call the server."""

import pytest

from holdfast.doors.http.origin import check_origin
from holdfast.model.errors import Forbidden
from tests.doors.serving import Server

QUEUE = {"tenant": "acme", "queue": "jobs"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example"},
    ],
)
async def test_a_page_of_another_site_claims_nothing(server: Server, headers: dict[str, str]) -> None:
    await server.enqueue(1)
    for method, path in (("GET", "/dequeue?namespace=acme&topic=jobs"), ("POST", "/v1/queue/dequeue")):
        answer = await server.call(method, path, QUEUE if method == "POST" else None, headers=headers)
        assert (answer.status, answer.code) == (403, "forbidden")
    assert (await server.get("/v1/queue/stats", **QUEUE)).json["ready"] == 1


async def test_a_program_and_the_server_s_own_page_are_let_in(server: Server) -> None:
    await server.enqueue(1, 2)
    assert await server.dequeue()
    own = {"Sec-Fetch-Site": "same-origin", "Origin": server.url}
    answer = await server.post("/v1/queue/dequeue", QUEUE, headers=own)
    assert len(answer.json["messages"]) == 1


@pytest.mark.parametrize("host", [b"localhost", b"localhost:7077", b"127.0.0.1:7077", b"127.8.8.8", b"[::1]:7077"])
def test_a_page_of_an_open_server_is_its_own_by_a_loopback_name(host: bytes) -> None:
    check_origin({b"host": host, b"origin": b"http://" + host, b"sec-fetch-site": b"same-origin"}, is_open=True)


@pytest.mark.parametrize("host", [b"evil.example:7077", b"192.168.1.7:7077", b"localhost.evil.example", b"", b"[::1"])
def test_a_name_that_was_pointed_at_an_open_server_is_refused(host: bytes) -> None:
    headers = {b"host": host, b"origin": b"http://" + host, b"sec-fetch-site": b"same-origin"}
    with pytest.raises(Forbidden):
        check_origin(headers, is_open=True)
    check_origin(headers, is_open=False)  # where callers show who they are, it may have any name
