"""The line that says where a server listens is written in the format of the log."""

import json
from pathlib import Path

import pytest

from tests.server.served import Served


@pytest.mark.parametrize("flags", [("--log-format", "json"), ()], ids=["chosen", "without a terminal"])
async def test_with_json_logs_every_line_of_a_server_is_json(tmp_path: Path, flags: tuple[str, ...]) -> None:
    data = tmp_path / "store"
    with Served("--data", data, *flags, environment={"HOLDFAST_WHO_KNOWS": "1"}) as server:
        listening = json.loads(server.line)
        server.signal()
        assert server.end() == 0

    assert (listening["event"], listening["level"], listening["logger"]) == ("listening", "info", "holdfast")
    assert listening["url"] == f"http://127.0.0.1:{server.port}"
    assert listening["store"] == str(data)
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert all({"time", "level", "event", "logger"} <= set(line) for line in [listening, *lines])
    assert [line["level"] for line in lines if "HOLDFAST_WHO_KNOWS" in line["event"]] == ["warning"]


async def test_with_console_logs_the_line_is_a_sentence(tmp_path: Path) -> None:
    data = tmp_path / "store"
    with Served("--data", data, "--log-format", "console") as server:
        assert server.line.startswith(f"Holdfast is serving {data} at http://127.0.0.1:")
