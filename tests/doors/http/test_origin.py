"""A page of another site cannot use a browser on this machine to call the server."""

import pytest

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
