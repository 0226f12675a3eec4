"""The memory store keeps the laws."""

from collections.abc import Awaitable, Callable

import pytest

from holdfast.dice import SeededDice
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.policy import TenantConfig
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.stores.memory import MemoryStore
from holdfast.stores.values import QueueChange
from holdfast.testing import EmbeddedSubject, Subject
from holdfast.testing.laws import StoreLaws

WEEK_MS = 7 * 86_400_000


class TestMemoryStore(StoreLaws):
    @pytest.fixture
    def subject(self) -> Subject:
        return EmbeddedSubject(lambda dice: MemoryStore(dice, WEEK_MS))


async def test_a_closed_store_refuses_every_call_on_tenants_queues_and_messages() -> None:
    store = MemoryStore(SeededDice(0), WEEK_MS)
    ref = QueueRef("acme", "mail")
    await store.directory.create_queue(ref, 0)
    await store.close()
    receipt = Receipt(1, bytes(16), 1)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.directory.find_tenant("acme"),
        lambda: store.directory.list_tenants(),
        lambda: store.directory.put_tenant("acme", TenantConfig()),
        lambda: store.directory.find_queue(ref),
        lambda: store.directory.list_queues("acme"),
        lambda: store.directory.create_queue(ref, 0),
        lambda: store.directory.create_queue(QueueRef("acme", "other"), 0),
        lambda: store.directory.change_queue(ref, QueueChange(is_paused=True), 0),
        lambda: store.enqueue(ref, [Draft(payload=b"a")], 0, auto_create=True),
        lambda: store.claim(ref, [ClaimRequest(limit=1)], 0),
        lambda: store.settle(ref, [Verdict(settle=Settle.ACK, receipt=receipt)], 0),
        lambda: store.get(ref, 1),
        lambda: store.peek(ref, 1, 0),
        lambda: store.counts("acme", None, 0),
        lambda: store.journal(None, 1, "acme", 0),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable):
            await call()
