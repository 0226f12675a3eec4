"""Find queues of a store with shards by the shard that owns them."""

from holdfast.client.blocking import Holdfast, Queue
from holdfast.model.names import QueueRef
from tests.crash.rocks import core_of

SHARDS = 4


def shard_of(hf: Holdfast, queue: str, tenant: str = "default") -> int:
    return core_of(hf).store.shard_of(QueueRef(tenant, queue))


def queue_in(hf: Holdfast, shard: int, tenant: str = "default") -> Queue:
    """Return a new queue that the shard owns."""
    for _ in range(100):
        name = f"queue-{len(hf.queues(tenant=tenant))}"
        hf.queue(name, tenant=tenant).set_policy(max_retries=100)
        if shard_of(hf, name, tenant) == shard:
            return hf.queue(name, tenant=tenant)
    raise AssertionError(f"none of 100 queues lies in shard {shard}")
