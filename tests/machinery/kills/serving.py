"""Common parts of servers that are killed."""

import socket
from collections.abc import Mapping

from tests.machinery.kills.load import MAX_PAYLOAD

MODULE = "tests.machinery.kills.server"
# Settings of every one of them.
SERVED: Mapping[str, object] = {"max_payload": MAX_PAYLOAD, "queue_max_consumers": 128}
# Client and server read one clock, each from its own start.
SKEW_MS = 25


def free_port() -> int:
    """For a server that is started again at the same address. Somebody else may take it meanwhile: then it says so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
