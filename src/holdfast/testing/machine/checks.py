"""Checks that compare everything visible in a store with the model, after each step of the queue machine."""

from collections import defaultdict
from dataclasses import dataclass

from hypothesis.stateful import RuleBasedStateMachine, invariant

from holdfast.client.blocking import BlockingMessage, Holdfast, Queue
from holdfast.dice import Dice, SeededDice
from holdfast.model.answers import Info, Stats
from holdfast.model.ids import MessageId
from holdfast.server.embedded import open_blocking
from holdfast.stores.contract import Store
from holdfast.testing.clock import ManualClock
from holdfast.testing.machine.choices import REFS
from holdfast.testing.machine.queue_model import ModelMessage, QueueModel, Ref

ROLL = 0.5

_EVERYTHING = 10_000
_FAILED_REASONS = {"retries", "final", "lease_expired", "ttl"}


class FixedDice:
    """Dice with seeded tokens and a constant roll, so that the model knows every backoff in advance."""

    def __init__(self, seed: int) -> None:
        self.tokens = SeededDice(seed).tokens

    def roll(self) -> float:
        return ROLL


@dataclass(slots=True)
class HeldDelivery:
    """A delivery as its claimer keeps it, with a receipt that may be stale."""

    id: int
    ref: Ref
    receipt: str
    etag: str | None
    # None after a crash: the connection that delivered it is gone, but the receipt is still valid.
    message: BlockingMessage | None


class QueueChecks(RuleBasedStateMachine):
    """A state machine with the invariants that hold after every rule, but no rules: two tenants, two queues each."""

    # A subclass that sets this to true must also implement `reopen`.
    can_crash = False

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.dice = FixedDice(seed=0)
        self.model = QueueModel(REFS, ROLL)
        self.deliveries: list[HeldDelivery] = []
        self.highest_id = 0
        self.highest_version: dict[int, int] = {}
        self.etags: dict[int, list[str]] = defaultdict(list)
        self.journal: dict[int, list[tuple[str, Ref, int, int, str | None]]] = defaultdict(list)
        self.position: str | None = None
        self.last_seq: dict[int, int] = {}
        self.hf = self._open(self.make_store(self.dice))
        for ref in REFS:
            self._queue(ref).set_policy()

    # --- Implemented by a subclass -------------------------------------------------------------------------------

    def make_store(self, dice: Dice) -> Store:
        """Return a new, empty store."""
        raise NotImplementedError

    def reopen(self) -> Store:
        """End the store as a killed process would, and return a store that opens the remaining files."""
        raise NotImplementedError

    def teardown(self) -> None:
        self.hf.close()

    # --- Invariants ----------------------------------------------------------------------------------------------

    @invariant()
    def every_message_is_as_the_model_says(self) -> None:
        for ref in REFS:
            queue = self._queue(ref)
            records = self.model.messages_of(ref)
            assert [info.snowflake for info in queue.list(limit=_EVERYTHING)] == [record.id for record in records]
            for record in records:
                _check_info(queue.get(record.id, payload=True), record)

    @invariant()
    def every_count_is_as_the_model_says(self) -> None:
        for tenant in dict.fromkeys(tenant for tenant, _ in REFS):
            every = []
            for ref in (ref for ref in REFS if ref[0] == tenant):
                stats = self._queue(ref).stats()
                assert _counts(stats) == self._expected_counts(ref)
                assert stats.paused == (ref in self.model.paused)
                every.append(_counts(stats))
            total = _counts(self.hf.tenant(tenant).stats())
            assert total == {
                name: (max if name == "oldest_ready_age_ms" else sum)(each[name] for each in every) for name in total
            }

    @invariant()
    def peek_shows_what_claims_would_take(self) -> None:
        for ref in REFS:
            shown = [info.snowflake for info in self._queue(ref).peek(_EVERYTHING)]
            assert shown == [record.id for record in self.model.due(ref, self._now)]

    @invariant()
    def the_journal_has_each_transition_once(self) -> None:
        events = self.hf.journal(self.position, _EVERYTHING)
        self.position = events.next
        for event in events:
            assert event.seq > self.last_seq.get(event.shard, -1)
            self.last_seq[event.shard] = event.seq
            reason = event.reason if event.event == "failed" else None
            self.journal[event.snowflake].append(
                (str(event.event), (event.tenant, event.queue), event.at, event.attempt, reason)
            )
        expected = {
            id: [(name, *rest, reason if name == "failed" else None) for name, *rest, reason in history]
            for id, history in self.model.events.items()
        }
        assert dict(self.journal) == expected

    # --- Steps ---------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> int:
        return self.clock.now_ms()

    def _open(self, store: Store) -> Holdfast:
        return open_blocking("", {}, clock=self.clock, dice=self.dice, store=store)

    def _queue(self, ref: Ref) -> Queue:
        return self.hf.queue(ref[1], tenant=ref[0])

    def _pick(self, pick: int, stale: bool, connected: bool = False) -> HeldDelivery:
        """Return a delivery: one with a current lease if there is one, or any delivery if `stale` is true."""
        known = [delivery for delivery in self.deliveries if delivery.message or not connected]
        current = [each for each in known if self.model.held_by(each.ref, each.receipt, self._now)]
        chosen = known if stale or not current else current
        return chosen[pick % len(chosen)]

    def _pick_record(self, pick: int) -> ModelMessage:
        return list(self.model.records.values())[pick % len(self.model.records)]

    def _pick_failed(self, pick: int) -> ModelMessage:
        failed = [record for record in self.model.records.values() if record.state == "failed"]
        return failed[pick % len(failed)]

    def _check_delivery(self, message: BlockingMessage, record: ModelMessage) -> None:
        assert "succeeded" not in {event for event, *_ in self.model.events[record.id]}, (
            "an acked message was delivered again"
        )
        assert message.version > self.highest_version.get(record.id, 0), "the version did not increase"
        self.highest_version[record.id] = message.version
        if self.can_crash:
            record.version = max(record.version, message.version)
        assert message.version == record.version
        assert message.receipt not in {delivery.receipt for delivery in self.deliveries}
        assert message.attempt == record.attempt
        assert message.payload == record.payload
        assert message.headers == record.headers
        assert message.priority == record.priority
        assert message.group == record.group
        assert message.enqueued_at == record.enqueued_at
        assert message.lease_expires_at == record.lease_expires_at
        assert message.correlation_id == (record.correlation_id or MessageId(record.id))

    def _expected_counts(self, ref: Ref) -> dict[str, int]:
        ready = self.model.messages_of(ref, "ready")
        due = [record.visible_at for record in ready if record.visible_at <= self._now]
        return {
            "ready": len(due),
            "delayed": len(ready) - len(due),
            "in_flight": len(self.model.messages_of(ref, "in_flight")),
            "failed": len(self.model.messages_of(ref, "failed")),
            "bytes": sum(record.bytes for record in self.model.messages_of(ref)),
            "oldest_ready_age_ms": self._now - min(due, default=self._now),
        }


def _counts(stats: Stats) -> dict[str, int]:
    names = ("ready", "delayed", "in_flight", "failed", "bytes", "oldest_ready_age_ms")
    return {name: getattr(stats, name) for name in names}


def _check_info(info: Info, record: ModelMessage) -> None:
    for name in ("state", "priority", "attempt", "failures", "expiries", "releases", "version", "enqueued_at"):
        assert getattr(info, name) == getattr(record, name), name
    for name in ("payload", "headers", "group", "bytes", "settled_at"):
        assert getattr(info, name) == getattr(record, name), name
    assert info.last_error == record.error
    assert info.correlation_id == (record.correlation_id or info.id)
    assert (info.progress.percent if info.progress else None) == record.progress
    assert info.lease_expires_at == (record.lease_expires_at or None)
    if record.state == "failed":
        assert info.reason == record.reason
    else:
        assert info.reason not in _FAILED_REASONS
    if record.state in ("ready", "in_flight"):
        assert info.visible_at == record.visible_at
        assert info.expires_at == record.expires_at
