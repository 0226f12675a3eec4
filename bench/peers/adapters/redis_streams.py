"""Redis streams with a consumer group and a log that is synced before every answer (appendfsync always)."""

import os
from pathlib import Path
from typing import Any

import redis

from bench.http.servers import free_port
from bench.peers.contract import Claimed, Client, Server
from bench.peers.processes import ServerProcess
from tests.services import find_program

_GROUP = "workers"


class RedisServer(Server):
    def __init__(self, directory: Path) -> None:
        port = free_port()
        self.address = str(port)
        command = [
            *(find_program("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "always"),
            # Rewriting the log is not what is measured.
            *("--auto-aof-rewrite-percentage", "0"),
        ]
        self._process = ServerProcess(command, directory, port)

    def pids(self) -> list[int]:
        return [self._process.pid]

    def reset(self, queues: list[str], *, notifies: bool) -> None:
        with redis.Redis(port=int(self.address)) as connection:
            connection.flushall()
            for queue in queues:
                connection.xgroup_create(queue, _GROUP, id="0", mkstream=True)

    def close(self) -> None:
        self._process.stop()


class StreamsClient(Client):
    """An ack also deletes the entry, as a queue must. A batch is a pipeline."""

    def __init__(self, address: str, *, notifies: bool) -> None:
        self._redis: Any = redis.Redis(port=int(address))
        self._name = f"consumer-{os.getpid()}"

    def enqueue(self, queue: str, payloads: list[bytes]) -> None:
        if len(payloads) == 1:
            self._redis.xadd(queue, {b"payload": payloads[0]})
            return
        pipeline = self._redis.pipeline(transaction=False)
        for payload in payloads:
            pipeline.xadd(queue, {b"payload": payload})
        pipeline.execute()

    def claim(self, queue: str, limit: int, wait_s: float) -> list[Claimed]:
        wait_ms = int(wait_s * 1_000) if wait_s > 0 else None
        found = self._redis.xreadgroup(_GROUP, self._name, {queue: ">"}, count=limit, block=wait_ms)
        return [(entry, fields[b"payload"]) for entry, fields in found[0][1]] if found else []

    def ack(self, queue: str, handles: list[Any]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.xack(queue, _GROUP, *handles)
        pipeline.xdel(queue, *handles)
        pipeline.execute()

    def close(self) -> None:
        self._redis.close()
