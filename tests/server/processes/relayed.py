"""A link as between two processes, with both of its ends in the test's own event loop."""

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from holdfast.server.compose import Core
from holdfast.server.doors.backend import Backend
from holdfast.server.processes.link import LinkAddress, StoreLink
from holdfast.server.processes.peers import DoorPeer
from holdfast.server.processes.relay import RelayBackend
from holdfast.server.processes.reports import ServerReports, TenantWeights
from holdfast.server.processes.store_links import StoreLinks
from holdfast.telemetry.metrics import Metrics

SECRET = "the secret of one door process"


class Relayed:
    """Both ends: the backend of the doors, and the links of the store process."""

    def __init__(self, backend: Backend, link: StoreLink, links: StoreLinks, peer: DoorPeer, path: str) -> None:
        self.backend = backend
        self.link = link
        self.links = links
        self.peer = peer
        self.path = path


@contextlib.asynccontextmanager
async def relay(core: Core, *, most_at_once: int = 64) -> AsyncIterator[Relayed]:
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "store")
        links = StoreLinks(core, ServerReports(Metrics(), core.weight_of))
        await links.listen(path)
        peer = DoorPeer(1, SECRET)
        links.admit(peer)
        weights = TenantWeights()
        link = StoreLink(LinkAddress(path=path, secret=SECRET), weights.weight_of, most_at_once)
        try:
            yield Relayed(RelayBackend(link, weights), link, links, peer, path)
        finally:
            await link.idle()
            link.close()
            await links.dismiss(peer)
            await links.close(1.0)
