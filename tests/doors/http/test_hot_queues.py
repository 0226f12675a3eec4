"""The busiest queues of each column family, as operators see them."""

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.inspection import top
from holdfast.clock import SystemClock
from tests.doors.serving import Tokens, caller, serve


@pytest.mark.spec("8.10")
async def test_an_operator_sees_the_busiest_queues_and_no_other_caller_does(tmp_path: Path) -> None:
    tokens = Tokens({"operator": caller("*", "admin"), "acme": caller("acme", "admin")})
    async with serve(SystemClock(), store=str(tmp_path / "data"), durability="os", identity=tokens) as server:
        operator, acme = server.with_token("operator"), server.with_token("acme")
        messages = [{"payload": 1, "delay_ms": 1}] * 500
        for _ in range(10):
            await operator.post("/v1/queue/enqueue", {"tenant": "acme", "queue": "jobs", "messages": messages})
        answer = await operator.get("/v1/hot")
        assert {"family": "m", "access": "write", "tenant": "acme", "queue": "jobs", "share": 1.0} in answer.json[
            "queues"
        ]
        refused = await acme.get("/v1/hot")
        assert (refused.status, refused.code) == (403, "forbidden")

        def shown(token: str) -> list[object]:
            with holdfast.open(server.url, token=token) as hf:
                return [row["hot_writes"] for row in top.frame(hf, "acme", top.Rates(hf, "acme"))]

        [writes] = await asyncio.to_thread(shown, "operator")
        assert isinstance(writes, dict)
        assert writes["m"] == 1.0
        assert await asyncio.to_thread(shown, "acme") == [{}]
