"""The calls that a store process other than the first one takes: from door processes, and from the coordinator."""

import asyncio
import hmac
import itertools

from holdfast.server.doors.backend import Backend
from holdfast.server.processes.peers import DoorPeer
from holdfast.server.processes.reports import ServerReports
from holdfast.server.processes.store_links import StoreLinks
from holdfast.server.store_processes.division import Division
from holdfast.telemetry.metrics import Metrics


class PortionLinks(StoreLinks):
    """The links of one store process. Every process of the server has the same secret for it.

    A peer is one connection: nobody else says when a door process has ended.
    """

    def __init__(self, backend: Backend, division: Division, secret: str, portion: int) -> None:
        # Door processes report to the first process alone.
        super().__init__(backend, ServerReports(Metrics(), lambda tenant: 1), division)
        self._secret = secret
        self._portion = portion
        self._numbers = itertools.count(1)
        self._dismissing: set[asyncio.Task[None]] = set()

    def peer_of_credential(self, credential: bytes | None) -> DoorPeer | None:
        """Return a peer for a new connection that gave the secret."""
        if credential is None or not hmac.compare_digest(credential, b"Bearer " + self._secret.encode()):
            return None
        return DoorPeer(next(self._numbers), self._secret, self._portion)

    def lost(self, peer: DoorPeer) -> None:
        """End the streams of a connection."""
        task = self.loop.create_task(self.dismiss(peer))
        self._dismissing.add(task)
        task.add_done_callback(self._dismissing.discard)
