"""The parts that the operations of one shard share."""

from typing import NamedTuple

from holdfast.runtime import Runtime
from holdfast.stores.contract import Listener
from holdfast.stores.disk.free_space import DiskRoom
from holdfast.stores.rocks.directory.queue_catalog import QueueCatalog
from holdfast.stores.rocks.directory.store_facts import ShardFacts
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.journal.journal import RocksJournal
from holdfast.stores.rocks.queues.idempotency_keys import SeenKeys
from holdfast.stores.rocks.queues.messages import MessageCache, MessageReads
from holdfast.stores.rocks.queues.publisher import Publisher


class ShardParts(NamedTuple):
    """The parts of a shard that uploads, atomic steps and sweeps work on."""

    engine: Engine
    runtime: Runtime
    facts: ShardFacts
    room: DiskRoom
    listener: Listener
    publisher: Publisher
    catalog: QueueCatalog
    cache: MessageCache
    reader: MessageReads
    journal: RocksJournal
    seen: SeenKeys
